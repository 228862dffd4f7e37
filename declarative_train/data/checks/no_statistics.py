"""no-statistics (D014)

Finds: statistics that cannot be computed from the training rows: no value there, infinite ones, too many classes.
Why:   a normalisation or a vocabulary made of nothing gives nan.
Bad:
    data:
      source: {type: csv, path: data/people.csv}
      fields:
        city: {type: category, column: city, num_classes: 2}
Good:
    data:
      source: {type: csv, path: data/people.csv}
      fields:
        city: {type: category, column: city, num_classes: 2, unknown: 0}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def no_statistics(span: Span, field: str, message: str) -> Diagnostic:
    return error("D014", span, f"field `{field}`: {message}")
