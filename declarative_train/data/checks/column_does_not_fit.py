"""column-does-not-fit (D006)

Finds: a column of a type or shape that a field cannot be made of.
Why:   text is no number, and values of different shapes make no tensor.
Bad:
    data:
      fields:
        pixels: {columns: "p*", shape: [1, 8, 9]}
Good:
    data:
      fields:
        pixels: {columns: "p*", shape: [1, 8, 8]}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def column_does_not_fit(span: Span, field: str, message: str, help: str | None) -> Diagnostic:
    return error("D006", span, f"field `{field}`: {message}", help)
