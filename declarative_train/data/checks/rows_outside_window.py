"""rows-outside-window (D013)

Finds: `rows` that are not in the window.
Why:   the field would be empty.
Bad:
    data:
      window: {length: 8, stride: 8}
      fields:
        pixels: {rows: "8:"}
        digit: {rows: 0}
      split: {validation: {type: last, fraction: 0.2}}
Good:
    data:
      window: {length: 8, stride: 8}
      fields:
        pixels: {rows: "7:"}
        digit: {rows: 0}
      split: {validation: {type: last, fraction: 0.2}}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def rows_outside_window(span: Span, field: str, rows: str | int, length: int) -> Diagnostic:
    message = f"field `{field}` takes rows `{rows}` of a window of {length}: there are none"
    return error("D013", span, message, f"rows go from 0 to {length - 1}")
