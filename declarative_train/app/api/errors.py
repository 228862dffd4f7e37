"""Exception that the Python API raises."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.diagnostics.render import render

RECIPE_HAS_ERRORS = 1
WRONG_USE = 2
RUN_FAILED = 3


class DtrainError(Exception):
    """Error with the text that a command would print. A notebook shows it without a traceback, because it is never a
    bug of this package.

    message      for a recipe with errors, each error with its file, line and fix
    diagnostics  those of a recipe with errors, with warnings; empty for other failures
    exit_code    1 the recipe has errors, 2 wrong use, 3 the command failed
    """

    def __init__(self, message: str, *, exit_code: int, diagnostics: Iterable[Diagnostic] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code
        self.diagnostics = tuple(diagnostics)

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows instead of a traceback."""
        return [f"{type(self).__name__}: {self.message}"]


def of_recipe(diagnostics: Iterable[Diagnostic], texts: Mapping[str, str]) -> DtrainError:
    """Return the error that reports these diagnostics of a recipe. `texts`: {path: text} of the recipe's files."""
    found = tuple(diagnostics)
    count = sum(each.is_error for each in found)
    head = f"the recipe has {'an error' if count == 1 else f'{count} errors'}"
    return DtrainError(f"{head}\n\n{render(found, texts).rstrip()}", exit_code=RECIPE_HAS_ERRORS, diagnostics=found)


def in_words(lines: Iterable[str]) -> str:
    """Return the lines of a command's message as one text, without the prefix `dtrain: `."""
    return "\n".join(line.removeprefix("dtrain: ") for line in lines)
