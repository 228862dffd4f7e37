"""rows-without-order (D018)

Finds: windows over rows that cannot be put in order: the `sort` column misses values.
Why:   a sample is a run of consecutive rows, and these have no neighbours.
Bad:
    data:
      source: {type: csv, path: data/people.csv}
      window: {length: 2, stride: 1, sort: age}
      split: {validation: {type: last, fraction: 0.5}}
Good:
    data:
      source: {type: csv, path: data/people.csv}
      window: {length: 2, stride: 1, sort: height}
      split: {validation: {type: last, fraction: 0.5}}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def rows_without_order(span: Span, column: str, message: str) -> Diagnostic:
    return error("D018", span, f"`{column}` does not order the rows: {message}")
