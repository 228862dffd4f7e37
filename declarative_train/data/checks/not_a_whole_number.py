"""not-a-whole-number (D009)

Finds: fractions in a field of whole numbers.
Why:   cut off, 0.5 and 0.9 both become 0.
Bad:
    data:
      source: {type: csv, path: data/people.csv}
      fields:
        height: {column: height, dtype: int64}
Good:
    data:
      source: {type: csv, path: data/people.csv}
      fields:
        height: {column: height, dtype: float32}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, Related, error
from declarative_train.terms.span import Span


def not_a_whole_number(span: Span, field: str, message: str, place: str, made: tuple[Related, ...] = ()) -> Diagnostic:
    way_out = "use `dtype: float32`, or round it in the file"
    return error("D009", span, f"field `{field}`: {message}, in {place}", way_out, made)
