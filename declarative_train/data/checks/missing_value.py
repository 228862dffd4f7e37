"""missing-value (D007)

Finds: missing values in the columns of a field that does not say what stands for them.
Why:   a single nan makes every gradient nan.
Bad:
    data:
      source: {type: csv, path: data/people.csv}
      fields:
        age: {column: age}
Good:
    data:
      source: {type: csv, path: data/people.csv}
      fields:
        age: {column: age, missing: mean}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def missing_value(span: Span, field: str, message: str, place: str, help: str | None) -> Diagnostic:
    return error("D007", span, f"field `{field}`: {message}, first in {place}", help)
