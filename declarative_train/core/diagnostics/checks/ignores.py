"""Messages on comments that switch a diagnostic off.

Each function builds the message of one diagnostic code. Its docstring is the manual page of that code.
"""

from __future__ import annotations

from declarative_train.core.diagnostics.diagnostic import Diagnostic, Fix, Related, warning
from declarative_train.core.span import Span


def unused_ignore(code: Span, word: str, edit: Fix) -> Diagnostic:
    """unused-ignore (I001)

    Finds: a `# dtrain: ignore[CODE]` that hides nothing.
    Why:   it would hide the next mistake of that kind, which has not been reviewed.
    Bad:
        meta: {owner: me}    # dtrain: ignore[Y021]
    Good:
        meta: {house: 010}   # dtrain: ignore[Y021]
    """
    return warning("I001", code, f"nothing here is a `{word}`", f"take `{word}` out of the comment", fixes=(edit,))


def ignored_error(code: Span, word: str, there: Span) -> Diagnostic:
    """ignored-error (I002)

    Finds: a `# dtrain: ignore[CODE]` for an error.
    Why:   a recipe with an error cannot be run; only warnings, and what needs verification, can be accepted.
    Bad:
        training: {epochs: 3, epochs: 4}    # dtrain: ignore[Y003]
    Good:
        training: {epochs: 3}
    """
    message = f"`{word}` is an error; only warnings can be ignored"
    return warning("I002", code, message, "fix the error", (Related(there, "the error"),))


def ignore_without_code(span: Span, word: str) -> Diagnostic:
    """ignore-without-code (I003)

    Finds: a comment `# dtrain: ignore` that names no code.
    Why:   the comment does not say which diagnostic is accepted, so it hides none.
    Bad:
        meta: {house: 010}   # dtrain: ignore
    Good:
        meta: {house: 010}   # dtrain: ignore[Y021]
    """
    return warning("I003", span, f"`{word}` names no code, and so hides nothing", f"write `{word}[CODE]`")
