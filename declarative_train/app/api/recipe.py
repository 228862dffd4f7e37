"""A recipe in Python: `load` names it, its methods do what the commands do."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from declarative_train.app.api.compiling import (
    STDIN_NAME,
    CompileResult,
    Overrides,
    compile_loaded,
    fragment_in_words,
    lint_recipe,
    missing_file,
    read_recipe,
    reported,
)
from declarative_train.app.api.diagnostics import Diagnostics
from declarative_train.app.api.errors import RECIPE_HAS_ERRORS, WRONG_USE, DtrainError, of_recipe
from declarative_train.app.api.overrides import overrides
from declarative_train.core.diagnostics.render import arrange

if TYPE_CHECKING:
    from declarative_train.app.api.plan_view import PlanView
    from declarative_train.app.api.run import Run

Paths = Sequence[str | os.PathLike[str]]


def load(path: str | os.PathLike[str], *, set: Mapping[str, object] | None = None, with_: Paths | str = ()) -> Recipe:
    """Return the recipe in a file, with fragments merged over it (`with_`, as `--with`) and single values set by their
    dotted paths (`set`, as `--set`). The file is read again by each method of the recipe. Raises DtrainError for
    what is not a path of a file."""
    if not isinstance(path, str | os.PathLike):
        message = f"a recipe is loaded from a path, and this is a {type(path).__name__}; help: `loads` takes its text"
        raise DtrainError(message, exit_code=WRONG_USE)
    text = os.fspath(path)
    if (why := missing_file(text)) is not None:
        raise DtrainError(why, exit_code=WRONG_USE)
    return Recipe(text, overrides(set, with_))


def loads(text: str, *, set: Mapping[str, object] | None = None, with_: Paths | str = ()) -> Recipe:
    """The recipe whose text this is. Paths in it are relative to the working directory."""
    return Recipe(STDIN_NAME, overrides(set, with_), text)


class Recipe:
    """A recipe and what is set over it; made by `load` and `loads`."""

    def __init__(self, path: str, overrides: Overrides, text: str | None = None) -> None:
        self.path = path
        self._overrides = overrides
        self._texts = None if text is None else {path: text}

    @property
    def text(self) -> str:
        """As it was typed, without what it extends and what is set over it."""
        return self._texts[self.path] if self._texts is not None else Path(self.path).read_text(encoding="utf-8")

    def lint(self, *, static: bool = False, plugins: bool = False) -> Diagnostics:
        """What is wrong, without starting anything. `static`: without a look at data and shapes, and without torch.
        `plugins`: import those of the recipe, which runs their code, to know their shapes."""
        found = lint_recipe(self.path, self._overrides, texts=self._texts, static=static, plugins=plugins)
        return Diagnostics(found.diagnostics, found.texts)

    def plan(self, *, plugins: bool = False) -> PlanView:
        """Who does what, where and when. Raises DtrainError, with all that is wrong, for a recipe with errors; warnings
        are in `PlanView.diagnostics`. `plugins`: as of `lint`; a recipe with plugins has no plan without."""
        from declarative_train.app.api.plan_view import PlanView

        compiled = self._compiled(plugins)
        if compiled.plan is None:
            raise self._why_not(compiled)
        return PlanView(compiled.plan, Diagnostics(reported(compiled), compiled.texts))

    def run(
        self, *, resume: str | os.PathLike[str] | None = None, max_steps: int | None = None, quiet: bool = False
    ) -> Run:
        """Lint, compile, launch, train, to the end; as `dtrain run`. Plugins are imported.

        `resume`: `"auto"` goes on from the newest checkpoint of this recipe's runs, a path from that run or checkpoint.
        `max_steps`: end after that many more optimizer steps. `quiet`: print only what goes wrong. Raises DtrainError
        when the recipe has errors, or the run fails. An interrupt (the stop button of a notebook) ends the run after
        the step, with a checkpoint, and it is returned as it is then; a second one raises KeyboardInterrupt.
        """
        return self.plan(plugins=True).run(resume=resume, max_steps=max_steps, quiet=quiet)

    def _compiled(self, plugins: bool) -> CompileResult:
        return compile_loaded(read_recipe(self.path, self._overrides, texts=self._texts, plugins=plugins))

    def _why_not(self, compiled: CompileResult) -> DtrainError:
        if (is_part := fragment_in_words(compiled.loaded)) is not None:
            return DtrainError(is_part.replace("--with", "with_="), exit_code=RECIPE_HAS_ERRORS)
        if compiled.note:
            note = compiled.note.replace("--plugins", "plugins=True")
            return DtrainError(note, exit_code=RECIPE_HAS_ERRORS, diagnostics=compiled.diagnostics)
        return of_recipe(arrange(reported(compiled)), compiled.texts)

    def __repr__(self) -> str:
        with_, set_ = self._overrides
        more = [f"--with {each}" for each in with_] + [f"--set {each}" for each in set_]
        return " ".join([f"<Recipe {self.path}", *more]) + ">"
