"""rows-without-window (D012)

Finds: `rows` on a field where there is no window.
Why:   without a window a sample is one row, and there is nothing to slice.
Bad:
    data:
      fields:
        pixels: {rows: ":4"}
Good:
    data:
      window: {length: 8, stride: 8}
      fields:
        pixels: {rows: ":4"}
        digit: {rows: 0}
      split: {validation: {type: last, fraction: 0.2}}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def rows_without_window(span: Span, field: str) -> Diagnostic:
    return error(
        "D012", span, f"field `{field}` takes `rows` of a window, and there is none", "add `window: {length: N}`"
    )
