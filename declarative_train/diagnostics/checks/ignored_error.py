"""ignored-error (I002)

Finds: a `# dtrain: ignore[CODE]` for an error.
Why:   a recipe with an error cannot be run; only warnings, and what needs verification, can be accepted.
Bad:
    training: {epochs: 3, epochs: 4}    # dtrain: ignore[Y003]
Good:
    training: {epochs: 3}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, Related, warning
from declarative_train.terms.span import Span


def ignored_error(code: Span, word: str, there: Span) -> Diagnostic:
    return warning(
        "I002",
        code,
        f"`{word}` is an error; only warnings can be ignored",
        "mend the error",
        (Related(there, "the error"),),
    )
