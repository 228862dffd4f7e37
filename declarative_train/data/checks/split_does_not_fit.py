"""split-does-not-fit (D016)

Finds: a set that cannot be cut: a comparison of numbers with text, rows that have no order.
Why:   the rows of the set would be decided by accident.
Bad:
    data:
      split: {validation: {type: where, column: label, equals: nine}}
Good:
    data:
      split: {validation: {type: where, column: label, equals: 9}}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def split_does_not_fit(span: Span, name: str, message: str) -> Diagnostic:
    return error("D016", span, f"`{name}` cannot be cut: {message}")
