"""Analysis of a recipe that is open in an editor: its mistakes and its resolved values. Plugins are never imported,
because displaying a recipe must not run code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from declarative_train import recipe as recipe_room
from declarative_train.app.api.compiling import STATIC, texts_of
from declarative_train.app.api.tracer import LateTracer
from declarative_train.app.api.tried_fixes import with_tried_fixes
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.diagnostics.fixes import locate_fixes
from declarative_train.core.diagnostics.render import arrange
from declarative_train.core.diagnostics.suppress import suppress
from declarative_train.recipe.load import Loaded
from declarative_train.source.document import Document

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan


@dataclass(frozen=True, slots=True)
class Analysis:
    """Result of the analysis of a recipe in an editor. `text`: the text that was analysed. `texts`: the texts of all
    files of the recipe, by path. `is_full`: whether data and shapes were checked too. `plan`: None after a static
    analysis, or if there is an error."""

    path: str
    text: str
    loaded: Loaded
    plan: Plan | None
    diagnostics: tuple[Diagnostic, ...]
    texts: Mapping[str, str]
    is_full: bool

    @property
    def document(self) -> Document | None:
        return self.loaded.document

    @property
    def rests_on(self) -> set[str]:
        """Paths of all files that the analysis read, with symbolic links resolved."""
        return {str(Path(path).resolve()) for path in self.texts}


def analyse(path: str, text: str, *, full: bool) -> Analysis:
    """Analyse a recipe with the checks of `dtrain lint` or, if not `full`, of `dtrain lint --static`. `text`: its text
    in the editor, which is used instead of the content of the file `path`."""
    loaded = recipe_room.load(path, text=text)
    diagnostics = list(loaded.diagnostics)
    plan = None
    if full and loaded.recipe is not None:
        from declarative_train import planner

        plan, found = planner.compile(loaded.recipe, tracer=LateTracer())
        diagnostics += found
    texts = {path: text, **texts_of(loaded)}
    left = suppress(locate_fixes(diagnostics, texts), texts, checked=None if full else STATIC)
    return Analysis(path, text, loaded, plan, tuple(arrange(left)), texts, full)


def try_fixes(now: Analysis, lines: range) -> Analysis:
    """Return the analysis `now` with more fixes for the diagnostics on the line numbers `lines` of its file. A fix is
    found by trial: edits of the text are made, and each edited text is checked."""
    here = [each for each in now.diagnostics if each.span.path == now.path and each.span.line in lines]
    if all(each.fixes for each in here):
        return now

    def lint(edited: Mapping[str, str]) -> tuple[Diagnostic, ...]:
        return analyse(now.path, edited[now.path], full=False).diagnostics

    found = with_tried_fixes(now.diagnostics, {now.path: now.text}, lint, None, here)
    return replace(now, diagnostics=tuple(found))


def earlier_diagnostics(before: Analysis | None, now: Analysis) -> list[Diagnostic]:
    """Return the diagnostics of the last full analysis (`before`) that the static analysis `now` cannot find, if their
    lines have not changed. The editor shows them until the next full analysis, so that they do not flicker while the
    user types."""
    if before is None or not before.is_full or now.is_full or now.loaded.recipe is None:
        return []
    old, new = before.text.splitlines(), now.text.splitlines()
    return [
        each
        for each in before.diagnostics
        if each not in before.loaded.diagnostics
        and each not in now.diagnostics
        and each.span.path == now.path
        and old[each.span.line - 1 : each.span.end_line] == new[each.span.line - 1 : each.span.end_line]
    ]
