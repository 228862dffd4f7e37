"""The text of a recipe in an editor -> its mistakes, and what its values are shown from.

Plugins are never imported: a recipe that is only looked at does not run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from declarative_train import recipe as recipe_room
from declarative_train.app.api.compiling import STATIC, texts_of
from declarative_train.app.api.tracer import LateTracer
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
    """`is_full`: the data and the shapes were looked at, too; `plan` is None without that, and where there is an
    error."""

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
        """The real paths of all files that it was read from."""
        return {str(Path(path).resolve()) for path in self.texts}


def analyse(path: str, text: str, *, full: bool) -> Analysis:
    """What `dtrain lint`, or without `full` what `dtrain lint --static`, says of `text` in the place of the file."""
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


def not_yet_looked_at(before: Analysis | None, now: Analysis) -> list[Diagnostic]:
    """What an earlier full analysis found and a static one cannot, on lines that are still the same: shown until the
    next full one, so that it does not blink at every key."""
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
