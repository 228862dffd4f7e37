"""Parsing: Document -> Recipe. Templates are rendered, sections read, blocks expanded, and the rules of `recipe/checks`
run.

Parsing continues after an error: a section with errors is left out, and everything that does not need it is checked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from collections.abc import Mapping as MappingABC
from functools import cache
from importlib import import_module
from typing import NamedTuple

from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.names import is_name
from declarative_train.core.packs import find_packs
from declarative_train.core.packs import load as load_from_pack
from declarative_train.core.span import Span
from declarative_train.recipe.checks import RULES, text_rules
from declarative_train.recipe.checks.blocks import bad_name
from declarative_train.recipe.checks.text_rules import displaced_loss
from declarative_train.recipe.draft import Draft
from declarative_train.recipe.hints.misspelt_sections import rename_misspelt_sections
from declarative_train.recipe.model.moved_wires import find_moved_wires
from declarative_train.recipe.recipe import Recipe
from declarative_train.recipe.requires import explain_by_version
from declarative_train.recipe.sectioning import Sectioning
from declarative_train.source.document import Document
from declarative_train.source.node import Entry, Mapping, Node, find
from declarative_train.source.template import Templates, render_vars

OPENED_LATER = ("graph", "blocks", "parameters")  # keys of `model`, rendered later with `params` and `index`


class Parsed(NamedTuple):
    """Result of parsing. `recipe`: None if there is an error, and for a fragment (a file that only other recipes use).
    `draft`: the sections that could be read. `document`: the document, with the texts of all plugins and shipped blocks
    that were read.
    """

    recipe: Recipe | None
    draft: Draft
    document: Document
    diagnostics: list[Diagnostic]


def parse(document: Document, *, plugins: bool = False) -> Parsed:
    """Read and check the recipe in a merged document. `plugins`: whether to import the recipe's plugins, which runs
    their code.
    """
    variables, diagnostics = render_vars(document.root, os.environ)
    names: dict[str, object] = {"vars": variables, "env": os.environ}
    templates = Templates()
    tree, found = _render_tree(rename_misspelt_sections(document.root), templates, names)
    diagnostics = diagnostics + found
    failed = [diagnostic.span for diagnostic in diagnostics]  # no further errors about the values of these

    sectioning = Sectioning(document, tree, templates, names, plugins)
    sectioning.read()
    draft = sectioning.draft()
    found = sectioning.diagnostics + check(draft, document.root)
    found += [*find_moved_wires(document), *displaced_loss(document)]
    found = [each for each in found if each.rests_on not in sectioning.unread]
    failed += templates.failed  # also those in the model, and those that read a wrong var
    diagnostics += [d for d in found if d.code.startswith("T") or not any(_holds(d.span, each) for each in failed)]
    diagnostics = list(dict.fromkeys(diagnostics))  # each use of a block repeats its errors
    diagnostics = explain_by_version(tree, diagnostics)
    if sectioning.is_part or any(diagnostic.is_error for diagnostic in diagnostics):
        return Parsed(None, draft, sectioning.whole_document(), diagnostics)
    recipe = sectioning.recipe()
    return Parsed(recipe, draft, recipe.document, diagnostics)


def _render_tree(
    root: Mapping, templates: Templates, names: MappingABC[str, object]
) -> tuple[Mapping, list[Diagnostic]]:
    """Return the recipe with templates rendered, and errors. Two parts stay as they are: `vars`, which were rendered
    before, and `graph`, `blocks` and `parameters` of the model, which are rendered when blocks are expanded. `names`:
    variables that templates can read.
    """
    diagnostics: list[Diagnostic] = []

    def render(node: Node) -> Node:
        rendered, found = templates.render(node, names)
        diagnostics.extend(found)
        return rendered

    def render_entry(entry: Entry) -> Node:
        if entry.name == "vars":
            return entry.value
        if entry.name == "model" and isinstance(entry.value, Mapping):
            return entry.value.with_values(lambda part: part.value if part.name in OPENED_LATER else render(part.value))
        return render(entry.value)

    return root.with_values(render_entry), diagnostics


def _holds(outer: Span, inner: Span) -> bool:
    return (
        outer.path == inner.path
        and (outer.line, outer.column) <= (inner.line, inner.column)
        and (inner.end_line, inner.end_column) <= (outer.end_line, outer.end_column)
    )


_Rule = Callable[[Draft], Iterator[Diagnostic]]


@cache
def draft_rules() -> tuple[_Rule, ...]:
    """Return the rules that check a draft, those of packs included, sorted by name. A rule is a function that yields
    diagnostics.
    """
    tables = {"declarative_train.recipe.checks": RULES}
    tables |= {pack.checks: load_from_pack(f"{pack.checks}:RULES") for pack in find_packs().values() if pack.checks}
    found: dict[str, _Rule] = {}
    for package, table in tables.items():
        for family, _, name in (place.partition(".") for place in table.values()):
            if family.endswith("_rules") and family != "text_rules":
                found[name] = getattr(import_module(f"{package}.{family}"), name)
    return tuple(found[name] for name in sorted(found))


NAMED = {  # mappings whose keys are names that the user chooses, except those of nodes and blocks
    "a field": ("data", "fields"),
    "a set": ("data", "split"),
    "a loss": ("objective", "losses"),
    "a metric": ("objective", "metrics"),
}


def check(draft: Draft, written: Mapping) -> list[Diagnostic]:
    """Return the diagnostics of all rules for a draft. `written`: the merged tree before templates are rendered."""
    found = [*text_rules.exclusive_keys(draft.tree), *_bad_names(draft.tree), *text_rules.secret_in_recipe(written)]
    for rule in draft_rules():
        found += rule(draft)
    return found


def _bad_names(tree: Mapping) -> Iterator[Diagnostic]:
    for what, path in NAMED.items():
        holder = find(tree, path)
        for entry in holder if isinstance(holder, Mapping) else ():
            if what == "a metric" and isinstance(entry.value, Mapping) and entry.value.get("type") is None:
                continue  # its name is its type, and is reported as a type
            if not is_name(entry.name):
                yield bad_name(entry.key.span, entry.name, what)
