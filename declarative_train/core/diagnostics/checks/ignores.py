"""Messages on comments that switch a diagnostic off.

Each function builds the message of one diagnostic code. Its docstring is the manual page of that code.
"""

from __future__ import annotations

from declarative_train.core.diagnostics.diagnostic import Diagnostic, Fix, Related, warning
from declarative_train.core.span import Span


def unused_ignore(code: Span, word: str, edit: Fix) -> Diagnostic:
    """unused-ignore (I001)

    Finds: a comment `# dtrain: ignore[CODE]` where no diagnostic with this code is given. It is not reported if the
           recipe has an error.
    Why:   the comment would hide the next diagnostic with this code, before anyone has read it.
    Bad:
        meta: {owner: me}    # dtrain: ignore[Y021]
    Good:
        meta: {house: 010}   # dtrain: ignore[Y021]
    """
    return warning(
        "I001",
        code,
        f"there is no diagnostic `{word}` here to hide",
        f"take `{word}` out of the comment",
        fixes=(edit,),
    )


def ignored_error(code: Span, word: str, there: Span) -> Diagnostic:
    """ignored-error (I002)

    Finds: a comment `# dtrain: ignore[CODE]` for a diagnostic that is an error.
    Why:   a recipe with an error cannot be run. A comment can only hide warnings and diagnostics that need
           verification.
    Bad:
        training: {epochs: 3, epochs: 4}    # dtrain: ignore[Y003]
    Good:
        training: {epochs: 3}
    """
    message = f"`{word}` is an error; only warnings can be ignored"
    return warning("I002", code, message, "fix the error", (Related(there, "the error"),))


def ignore_without_code(span: Span, word: str) -> Diagnostic:
    """ignore-without-code (I003)

    Finds: a comment `# dtrain: ignore` or `# dtrain: ignore-file` that names no code.
    Why:   the comment does not say which diagnostic it accepts, so it hides none.
    Bad:
        meta: {house: 010}   # dtrain: ignore
    Good:
        meta: {house: 010}   # dtrain: ignore[Y021]
    """
    return warning("I003", span, f"`{word}` names no code, and so hides nothing", f"write `{word}[CODE]`")
