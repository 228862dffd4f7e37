"""wrong-set (M006)

Finds: a `--set` that is not `PATH=VALUE` with a dotted path.
Why:   it could not be said which value was meant.
Bad:
    # options: --set training.steps
Good:
    # options: --set training.steps=10
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def wrong_set(span: Span, message: str, help: str) -> Diagnostic:
    return error("M006", span, message, help)
