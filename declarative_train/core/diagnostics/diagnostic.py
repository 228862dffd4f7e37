"""Diagnostic: one mistake in a recipe, with its file, line and column, a message and a hint."""

from enum import StrEnum
from typing import Literal, NamedTuple

from declarative_train.core.span import Span


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"
    UNVERIFIED = (
        "needs verification"  # depends on more than local files: a remote schema, a plugin's shapes, the newest run
    )


Basis = Literal["all files", "data.fields", "plugins"]
"""Facts that a diagnostic may depend on: all files of a recipe, the names of its fields, the layers of its plugins."""


class Related(NamedTuple):
    """Second position in a recipe that explains a diagnostic, with its own message: `512 comes from here`."""

    span: Span
    message: str


class Fix(NamedTuple):
    """Edit of the recipe's text that corrects a mistake.

    `safe`: True if the edit provably does not change the plan. If an error prevents a plan: True if no other correction
    is possible.

    `replaces`: the word that the edit replaces. The edit is not made if the text at `span` is not this word, bare or in
    quotes, but for example a template or an alias.
    """

    span: Span
    replacement: str
    safe: bool
    replaces: str | None = None


class Diagnostic(NamedTuple):
    """Mistake in a recipe.

    message   begins in lower case: what was found and what was expected
    help      one hint, without the word `help`
    fixes     edits that correct the mistake, applied together or not at all
    rests_on  part of the recipe that the check had to read (`data.fields`, `all files`). If it could not be read, the
              diagnostic is dropped, because that part has one of its own"""

    code: str
    severity: Severity
    span: Span
    message: str
    help: str | None = None
    related: tuple[Related, ...] = ()
    fixes: tuple[Fix, ...] = ()
    rests_on: Basis | None = None

    @property
    def is_error(self) -> bool:
        return self.severity is Severity.ERROR


def error(
    code: str,
    span: Span,
    message: str,
    help: str | None = None,
    related: tuple[Related, ...] = (),
    fixes: tuple[Fix, ...] = (),
    rests_on: Basis | None = None,
) -> Diagnostic:
    return Diagnostic(code, Severity.ERROR, span, message, help, related, fixes, rests_on)


def warning(
    code: str,
    span: Span,
    message: str,
    help: str | None = None,
    related: tuple[Related, ...] = (),
    fixes: tuple[Fix, ...] = (),
) -> Diagnostic:
    return Diagnostic(code, Severity.WARNING, span, message, help, related, fixes)


def unverified(code: str, span: Span, message: str, help: str | None = None) -> Diagnostic:
    return Diagnostic(code, Severity.UNVERIFIED, span, message, help)
