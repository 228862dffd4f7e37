"""double-precision (G008)

Finds: a layer with parameters behind a float64 field, in a run that does not compute in float64.
Why:   parameters follow the dtype of their input; the layer would be held and computed in float64, at twice the memory
       and a fraction of the speed, whatever `training.precision` says.
Bad:
    data:
      fields:
        pixels: {dtype: float64}
Good:
    data:
      fields:
        pixels: {dtype: float32}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, Related, error
from declarative_train.terms.span import Span


def double_precision(span: Span, type: str, port: str, precision: str, made: tuple[Related, ...]) -> Diagnostic:
    return error(
        "G008",
        span,
        f"`{type}` gets float64 at `{port}`, and training.precision is {precision}",
        "give the field `dtype: float32`, or set training.precision to fp64",
        made,
    )
