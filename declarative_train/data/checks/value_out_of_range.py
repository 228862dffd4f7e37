"""value-out-of-range (D008)

Finds: a label outside the classes, a value that is in none of the training rows, a number that the dtype does not hold.
Why:   a class that does not exist stops a GPU in the middle of a step, and its message names no row.
Bad:
    data:
      fields:
        digit: {type: category, column: label, num_classes: 9}
Good:
    data:
      fields:
        digit: {type: category, column: label, num_classes: 10}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, Related, error
from declarative_train.terms.span import Span


def value_out_of_range(
    span: Span, field: str, message: str, place: str, help: str | None, made: tuple[Related, ...] = ()
) -> Diagnostic:
    return error("D008", span, f"field `{field}`: {message}, in {place}", help, made)
