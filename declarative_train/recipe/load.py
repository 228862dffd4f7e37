"""Loading of a recipe: path -> Recipe and diagnostics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from declarative_train.core.diagnostics.diagnostic import Diagnostic, Related
from declarative_train.core.span import Span
from declarative_train.recipe.checks.keys import wrong_value
from declarative_train.recipe.draft import Draft
from declarative_train.recipe.merge_rules import MERGE_RULES
from declarative_train.recipe.parse import parse
from declarative_train.recipe.recipe import Recipe
from declarative_train.recipe.sections.top import LANGUAGES
from declarative_train.recipe.sweeps import one_at_a_time, overlay
from declarative_train.source import load as read_document
from declarative_train.source.document import Document
from declarative_train.source.node import Mapping as Tree
from declarative_train.source.node import Scalar


class Loaded(NamedTuple):
    """Result of loading. `recipe`: None if there is an error, and for a fragment (a file that only other recipes use).
    `document`: the merged YAML; None if the text cannot be parsed. `draft`: the sections that could be read; None if
    nothing was read.
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

    `text`: content to use in place of the file (standard input, an editor's buffer); `texts`: the same for any files,
    by path. `with_`, `set_`: values of the options `--with` (files) and `--set` (`KEY=VALUE`). `over`: settings of one
    run of a sweep, merged last. `plugins`: whether to import the recipe's plugins, which runs their code.
    """
    how: dict[str, Any] = {"text": text, "texts": texts, "with_": with_, "set_": set_}
    document, diagnostics = read_document(path, **how, over=over, rules=MERGE_RULES)
    if document is None:
        return Loaded(None, None, diagnostics)
    if (unknown := _check_language(document.root)) is not None:
        return Loaded(None, document, [unknown])
    recipe, draft, document, found = parse(document, plugins=plugins)
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

    `found` is the result for the recipe with the value, `known` the result without it. `at`: the span of the value; a
    diagnostic at another span gets a reference to it.
    """
    said = set(known)
    new = [item for item in found if item not in said]
    related = Related(at, "set by a sweep")
    new = [item if item.span == at else item._replace(related=(*item.related, related)) for item in new]
    return [item for item in dict.fromkeys(new) if item not in said]


def _begins_in(outer: Span, inner: Span) -> bool:
    begin = (inner.line, inner.column)
    return inner.path == outer.path and (outer.line, outer.column) <= begin < (outer.end_line, outer.end_column)
