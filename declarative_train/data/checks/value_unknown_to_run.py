"""value-unknown-to-run (D030)

Finds: a value of a category that has no class number in the run whose weights the model starts from.
Why:   class numbers come from the run named by `model.weights`: numbers made anew from other rows would give each
       class the weights of another one.
Bad:
    data:
      source: {type: csv, path: data/people.csv}
      fields:
        city: {type: category, column: city}
    model: {weights: earlier_people}
Good:
    data:
      source: {type: csv, path: data/people.csv}
      fields:
        city: {type: category, column: city}
    model: {weights: {path: earlier_people, statistics: data}}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, Related, error
from declarative_train.terms.span import Span


def value_unknown_to_run(
    span: Span, field: str, column: str, value: str, known: str, place: str, made: tuple[Related, ...]
) -> Diagnostic:
    way_out = "correct the value; or, for classes of its own, add `statistics: data` to model.weights"
    return error("D030", span, f"field `{field}`: `{column}` is {value} in {place}, and {known}", way_out, made)
