"""newer-dtrain (S007)

Finds: a recipe that asks for another dtrain than this one.
Why:   keys that only a later version knows would be called mistakes.
Bad:
    requires: dtrain>=99.0
Good:
    requires: dtrain>=0.1
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def newer_dtrain(span: Span, requires: str, version: str) -> Diagnostic:
    return error("S007", span, f"the recipe requires {requires}, this is dtrain {version}", "install that version")
