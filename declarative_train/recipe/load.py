"""Loading of a recipe: path -> Recipe and diagnostics. The text is read and merged, templates are rendered, sections
read, blocks expanded, and the rules of `recipe/checks` run.

After an error the rest is still checked: a section with errors is left out, with everything that needs it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from declarative_train.core.diagnostics.diagnostic import Diagnostic, Related
from declarative_train.core.names import is_name
from declarative_train.core.packs import find_packs
from declarative_train.core.packs import load as load_from_pack
from declarative_train.core.span import Span
from declarative_train.recipe.checks import RULES, text_rules
from declarative_train.recipe.checks.blocks import bad_name
from declarative_train.recipe.checks.keys import wrong_value
from declarative_train.recipe.checks.text_rules import displaced_loss
from declarative_train.recipe.draft import Draft
from declarative_train.recipe.hints.misspelt_sections import rename_misspelt_sections
from declarative_train.recipe.merge_rules import MERGE_RULES
from declarative_train.recipe.model.moved_wires import find_moved_wires
from declarative_train.recipe.recipe import Recipe
from declarative_train.recipe.requires import explain_by_version
from declarative_train.recipe.sectioning import Sectioning
from declarative_train.recipe.sections.top import LANGUAGES
from declarative_train.recipe.sweeps import one_at_a_time, overlay
from declarative_train.source import load as read_document
from declarative_train.source.document import Document
from declarative_train.source.node import Entry, Node, Scalar, find
from declarative_train.source.node import Mapping as Tree
from declarative_train.source.template import Templates, render_vars

OPENED_LATER = ("graph", "blocks", "parameters")  # keys of `model`, rendered later with `params` and `index`
NAMED = {  # mappings whose keys are names that the user chooses, except those of nodes and blocks
    "a field": ("data", "fields"),
    "a set": ("data", "split"),
    "a loss": ("objective", "losses"),
    "a metric": ("objective", "metrics"),
}
_Rule = Callable[[Draft], Iterator[Diagnostic]]


class Loaded(NamedTuple):
    """Result of loading. `recipe`: None if there is an error, and for a fragment (a file that only other recipes use).
    `document`: the merged YAML, with the texts of plugins and shipped blocks that were read; None if the text cannot be
    parsed. `draft`: the sections that could be read; None if nothing was read.
    """

    recipe: Recipe | None
    document: Document | None
    diagnostics: list[Diagnostic]
    draft: Draft | None = None


def load(
    path: str,
    *,
    text: str | None = None,
    texts: Mapping[str, str] | None = None,
    with_: Sequence[str] = (),
    set_: Sequence[str] = (),
    over: Sequence[Tree] = (),
    plugins: bool = False,
) -> Loaded:
    """Read, merge, render and check the recipe at a path.

    `text`: content to use in place of the file, such as standard input or an editor's buffer. `texts`: {path: content},
    the same for any files. `with_`, `set_`: values of the options `--with` (files) and `--set` (`KEY=VALUE`). `over`:
    settings of one run of a sweep, merged last. `plugins`: whether to import the recipe's plugins, which runs their
    code.
    """
    how: dict[str, Any] = {"text": text, "texts": texts, "with_": with_, "set_": set_}
    document, diagnostics = read_document(path, **how, over=over, rules=MERGE_RULES)
    if document is None:
        return Loaded(None, None, diagnostics)
    if (unknown := _check_language(document.root)) is not None:
        return Loaded(None, document, [unknown])
    recipe, document, found, draft = parse(document, plugins=plugins)
    # Where the YAML has an error, the reader continues with a guess. Errors inside the guess are not the user's.
    guessed = [item.span for item in diagnostics if item.is_error and item.code.startswith("Y")]
    diagnostics = diagnostics + [item for item in found if not any(_begins_in(span, item.span) for span in guessed)]
    if recipe is not None and recipe.sweep is not None and not over:
        for choice, node in one_at_a_time(recipe):
            point = load(path, **how, over=(overlay(choice.key, node),), plugins=plugins)
            diagnostics = [*diagnostics, *select_new(point.diagnostics, diagnostics, node.span)]
    if any(diagnostic.is_error for diagnostic in diagnostics):
        recipe = None
    return Loaded(recipe, document, diagnostics, draft)


def _check_language(root: Tree) -> Diagnostic | None:
    """Return an error if this version of dtrain does not read the recipe's `language`, else None. The caller then
    reports only this error.
    """
    node = root.get("language")
    number = node.value if isinstance(node, Scalar) else None
    if not isinstance(node, Scalar) or not isinstance(number, int) or isinstance(number, bool) or number in LANGUAGES:
        return None
    hint = "install a newer dtrain" if number > LANGUAGES[-1] else f"write `language: {LANGUAGES[-1]}`"
    return wrong_value(node.span, f"this dtrain reads language {', '.join(map(str, LANGUAGES))}, not {number}", hint)


def select_new(found: Sequence[Diagnostic], known: Sequence[Diagnostic], at: Span) -> list[Diagnostic]:
    """Return the diagnostics that one value of a sweep causes: those in `found` that are not in `known`.

    `found`: the diagnostics of the recipe with the value; `known`: those of the recipe without it. `at`: the span of
    the value. If a diagnostic has another span, a reference to `at` is added to it.
    """
    said = set(known)
    new = [item for item in found if item not in said]
    related = Related(at, "set by a sweep")
    new = [item if item.span == at else item._replace(related=(*item.related, related)) for item in new]
    return [item for item in dict.fromkeys(new) if item not in said]


def parse(document: Document, *, plugins: bool = False) -> Loaded:
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
        return Loaded(None, sectioning.whole_document(), diagnostics, draft)
    recipe = sectioning.recipe()
    return Loaded(recipe, recipe.document, diagnostics, draft)


def _render_tree(root: Tree, templates: Templates, names: Mapping[str, object]) -> tuple[Tree, list[Diagnostic]]:
    """Return the recipe with its templates rendered, and errors. `names`: variables that templates can read. `vars` is
    left unchanged, because it is already rendered. So are the model's keys `graph`, `blocks` and `parameters`, which
    are rendered when blocks are expanded."""
    diagnostics: list[Diagnostic] = []

    def render(node: Node) -> Node:
        rendered, found = templates.render(node, names)
        diagnostics.extend(found)
        return rendered

    def render_entry(entry: Entry) -> Node:
        if entry.name == "vars":
            return entry.value
        if entry.name == "model" and isinstance(entry.value, Tree):
            return entry.value.with_values(lambda part: part.value if part.name in OPENED_LATER else render(part.value))
        return render(entry.value)

    return root.with_values(render_entry), diagnostics


def _begins_in(outer: Span, inner: Span) -> bool:
    begin = (inner.line, inner.column)
    return inner.path == outer.path and (outer.line, outer.column) <= begin < (outer.end_line, outer.end_column)


def _holds(outer: Span, inner: Span) -> bool:
    return (
        outer.path == inner.path
        and (outer.line, outer.column) <= (inner.line, inner.column)
        and (inner.end_line, inner.end_column) <= (outer.end_line, outer.end_column)
    )


@cache
def draft_rules() -> tuple[_Rule, ...]:
    """Return the rules that check a Draft (the sections of a recipe that could be read), sorted by name. Those of packs
    are included. A rule is a function that yields diagnostics."""
    tables = {"declarative_train.recipe.checks": RULES}
    tables |= {pack.checks: load_from_pack(f"{pack.checks}:RULES") for pack in find_packs().values() if pack.checks}
    found: dict[str, _Rule] = {}
    for package, table in tables.items():
        for family, _, name in (place.partition(".") for place in table.values()):
            if family.endswith("_rules") and family != "text_rules":
                found[name] = getattr(import_module(f"{package}.{family}"), name)
    return tuple(found[name] for name in sorted(found))


def check(draft: Draft, written: Tree) -> list[Diagnostic]:
    """Return the diagnostics of all rules for a draft. `written`: the merged tree before templates are rendered."""
    found = [*text_rules.exclusive_keys(draft.tree), *_bad_names(draft.tree), *text_rules.secret_in_recipe(written)]
    for rule in draft_rules():
        found += rule(draft)
    return found


def _bad_names(tree: Tree) -> Iterator[Diagnostic]:
    for what, path in NAMED.items():
        holder = find(tree, path)
        for entry in holder if isinstance(holder, Tree) else ():
            if what == "a metric" and isinstance(entry.value, Tree) and entry.value.get("type") is None:
                continue  # its name is its type, and is reported as a type
            if not is_name(entry.name):
                yield bad_name(entry.key.span, entry.name, what)
