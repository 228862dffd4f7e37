"""unused-field (W008)

Finds: a field of the data that neither the model nor the objective uses.
Why:   it is read, transformed and moved to the device in every step.
Bad:
    data:
      fields:
        spare: {columns: [p0], dtype: float32}
Good:
    data:
      shuffle: true
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, warning
from declarative_train.terms.span import Span


def unused_field(span: Span, name: str) -> Diagnostic:
    return warning("W008", span, f"nobody uses the field `{name}`", "remove it from `data.fields`, or use it")
