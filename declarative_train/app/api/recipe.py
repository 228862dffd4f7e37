"""Recipe in the Python API: `load` opens it, and its methods correspond to commands."""

from __future__ import annotations

import json
import math
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
    without_ignored,
)
from declarative_train.app.api.diagnostics import Diagnostics
from declarative_train.app.api.errors import RECIPE_HAS_ERRORS, WRONG_USE, DtrainError, of_recipe
from declarative_train.app.api.hints import explain_keywords, no_attribute
from declarative_train.core.diagnostics.render import arrange

if TYPE_CHECKING:
    from declarative_train.app.api.plan_view import PlanView
    from declarative_train.app.api.run import Run

Paths = Sequence[str | os.PathLike[str]]


@explain_keywords
def load(
    path: str | os.PathLike[str] | Mapping[str, object],
    *,
    set: Mapping[str, object] | None = None,
    with_: Paths | str = (),
) -> Recipe:
    """Return a recipe. `path`: its file, or a mapping with the sections of a recipe. `with_`: fragments to merge over
    it, as by `--with`. `set`: single values by dotted path, as by `--set`. Each method of the recipe reads the file
    again. Raises DtrainError if there is no readable file at `path`, or `path` has another type."""
    if isinstance(path, Mapping):
        return Recipe(STDIN_NAME, overrides(set, with_), _as_yaml(path))
    if not isinstance(path, str | os.PathLike):
        message = f"a recipe is loaded from a path, not from a {type(path).__name__}; help: `loads` reads its text"
        raise DtrainError(message, exit_code=WRONG_USE)
    text = os.fspath(path)
    if (why := missing_file(text)) is not None:
        raise DtrainError(why, exit_code=WRONG_USE)
    return Recipe(text, overrides(set, with_))


def loads(text: str, *, set: Mapping[str, object] | None = None, with_: Paths | str = ()) -> Recipe:
    """Return a Recipe with this text. Paths in the text are relative to the working directory. `set`: single values by
    dotted path, as by `--set`. `with_`: fragments to merge over it, as by `--with`."""
    return Recipe(STDIN_NAME, overrides(set, with_), text)


def overrides(set: Mapping[str, object] | None, with_: Sequence[str | os.PathLike[str]] | str) -> Overrides:
    """Return the Overrides for the arguments of `load`. `set`: values by dotted path; `with_`: files, which are merged
    first, in this order. Raises DtrainError."""
    files = [with_] if isinstance(with_, str | os.PathLike) else with_
    values = [f"{key}={_yaml(key, value)}" for key, value in (set or {}).items()]
    return Overrides([os.fspath(each) for each in files], values)


def _yaml(key: str, value: object) -> str:
    """Return a value as YAML text. `key`: its dotted path, for the error if YAML cannot represent it."""
    plain = _plain_override(key, value)
    if isinstance(plain, float) and not math.isfinite(plain):
        return ".nan" if math.isnan(plain) else f"{'-' if plain < 0 else ''}.inf"
    return json.dumps(plain, ensure_ascii=False)


def _plain_override(key: str, value: object) -> object:
    if value is None or isinstance(value, bool | str | int | float):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(name): _plain_override(key, each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_override(key, each) for each in value]
    if callable(item := getattr(value, "item", None)) and getattr(value, "shape", None) == ():
        return _plain_override(key, item())  # number from numpy or torch
    raise DtrainError(
        f"set: `{key}` is a {type(value).__name__}, and a recipe contains numbers, words, lists and mappings",
        exit_code=WRONG_USE,
    )


def _as_yaml(sections: Mapping[str, object]) -> str:
    """Return sections as JSON text (which is YAML), with one value per line. Raises DtrainError for a value that JSON
    cannot represent."""
    try:
        return json.dumps(sections, indent=2, ensure_ascii=False, default=_plain)
    except (TypeError, ValueError) as error:
        raise DtrainError(f"these sections are not a recipe: {error}", exit_code=WRONG_USE) from None


def _plain(value: object) -> object:
    """Return a value in the types of JSON: a path becomes text, a mapping a dict, a sequence a list."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "item"):  # number from numpy
        return value.item()
    raise TypeError(f"{type(value).__name__} is not a value of a recipe")


class Recipe:
    """Recipe with its overrides, as returned by `load` and `loads`."""

    def __init__(self, path: str, overrides: Overrides, text: str | None = None) -> None:
        self.path = path
        self._overrides = overrides
        self._texts = None if text is None else {path: text}

    @property
    def text(self) -> str:
        """Text of the file itself, without the files that it extends and without overrides."""
        return self._texts[self.path] if self._texts is not None else Path(self.path).read_text(encoding="utf-8")

    def lint(self, *, static: bool = False, plugins: bool = False) -> Diagnostics:
        """Return the mistakes in the recipe; nothing is started. `static`: check neither data nor shapes, and import no
        torch. `plugins`: import the recipe's plugins, which runs their code, to check the shapes of their layers."""
        found = lint_recipe(self.path, self._overrides, texts=self._texts, static=static, plugins=plugins)
        return Diagnostics(found.diagnostics, found.texts)

    def plan(self, *, plugins: bool = False) -> PlanView:
        """Compile the recipe and return its plan. Warnings are in `PlanView.diagnostics`. Raises DtrainError, with all
        diagnostics, if the recipe has errors. `plugins`: import the user's plugin files, without which a recipe that
        uses them cannot be compiled."""
        from declarative_train.app.api.plan_view import PlanView

        compiled = self._compile(plugins)
        if compiled.plan is None:
            raise self._why_not(compiled)
        return PlanView(compiled.plan, Diagnostics(without_ignored(compiled), compiled.texts))

    @explain_keywords
    def run(
        self, *, resume: str | os.PathLike[str] | None = None, max_steps: int | None = None, quiet: bool = False
    ) -> Run:
        """Lint, compile and train to the end, as `dtrain run` does. Plugins are imported. Return the run.

        `resume`     `"auto"`: the newest checkpoint among this recipe's runs; or the path of a run or checkpoint
        `max_steps`  stop after this number of optimizer steps
        `quiet`      print problems only

        Raises DtrainError if the recipe has errors or the run fails, and ValueError if `max_steps` is below 1. An
        interrupt stops the run after the current step, with a checkpoint; a second one raises KeyboardInterrupt.
        """
        return self.plan(plugins=True).run(resume=resume, max_steps=max_steps, quiet=quiet)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            raise no_attribute("Recipe", name, dir(type(self)))

    def _compile(self, plugins: bool) -> CompileResult:
        return compile_loaded(read_recipe(self.path, self._overrides, texts=self._texts, plugins=plugins))

    def _why_not(self, compiled: CompileResult) -> DtrainError:
        if (is_part := fragment_in_words(compiled.loaded)) is not None:
            return DtrainError(is_part.replace("--with", "with_="), exit_code=RECIPE_HAS_ERRORS)
        if compiled.note:
            note = compiled.note.replace("--plugins", "plugins=True")
            return DtrainError(note, exit_code=RECIPE_HAS_ERRORS, diagnostics=compiled.diagnostics)
        return of_recipe(arrange(without_ignored(compiled)), compiled.texts)

    def _repr_html_(self) -> str:
        from declarative_train.app.api.display import text_html

        return text_html(f"{self!r}\n\n{self.text}", headings=False)

    def __repr__(self) -> str:
        with_, set_ = self._overrides
        more = [f"--with {each}" for each in with_] + [f"--set {each}" for each in set_]
        return " ".join([f"<Recipe {self.path}", *more]) + ">"
