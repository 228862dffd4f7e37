"""bad-duration (R002)

Finds: a duration that cannot be read, or in a unit that does not fit the key.
Why:   a warm-up in hours or a time limit in epochs has no exact meaning.
Bad:
    training:
      max_time: 5 epochs
Good:
    training:
      max_time: 2 hours
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def bad_duration(span: Span, name: str, problem: str) -> Diagnostic:
    return error("R002", span, f"`{name}`: {problem}")
