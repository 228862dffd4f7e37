"""A diagnostic: one thing that is wrong with a recipe, where, and one hint."""

from enum import StrEnum
from typing import Literal, NamedTuple

from declarative_train.core.span import Span


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"
    UNVERIFIED = "needs verification"  # no file can tell: a remote schema, a plugin's shapes, the newest run


Basis = Literal["all files", "data.fields", "plugins"]
"""What a diagnostic may take for known: every file of a recipe, the names of its fields, the layers of its plugins."""


class Related(NamedTuple):
    """Another place that is part of the mistake: `512 comes from here`."""

    span: Span
    message: str


class Fix(NamedTuple):
    """An edit that mends the mistake.

    `safe`: the plan provably stays the same or, where an error leaves no plan, nothing else can have been meant.
    `replaces`: the word that must stand at the span, bare or in quotes; where it was made by a template, an option or
    an alias there is nothing to edit (see `fixes.placed`).
    """

    span: Span
    replacement: str
    safe: bool
    replaces: str | None = None


class Diagnostic(NamedTuple):
    """`message` is lower case, says what was found and what was wanted; `help` is one hint, without that word.

    `fixes` are applied together or not at all. `rests_on`: what this holds for only where it could be read; where it
    could not, this is an echo of that mistake, and is left out.
    """

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
