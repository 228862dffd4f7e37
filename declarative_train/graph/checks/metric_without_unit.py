"""metric-without-unit (O011)

Finds: an error in the target's unit (`rmse`, `mae`, `mse`, `mape`) of a target that is computed of a scaled or
       normalised field.
Why:   such an error is told in the unit of the column: what `scale` and `normalize` did is undone. Of a target that
       was computed further this is not possible, and the number would have no unit.
Bad:
    model: {graph: {doubled: pixels * 2, back: {type: linear, out_features: 64, input: act}}}
    objective:
      losses: {loss: {}, again: {type: mse, input: back, target: doubled}}
      metrics: {accuracy: {of: loss}, rmse: {of: again}}
Good:
    model: {graph: {back: {type: linear, out_features: 64, input: act}}}
    objective:
      losses: {loss: {}, again: {type: mse, input: back, target: pixels}}
      metrics: {accuracy: {of: loss}, rmse: {of: again}}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def metric_without_unit(span: Span, metric: str, target: str, field: str) -> Diagnostic:
    message = f"`{metric}` of `{target}` has no unit: it is computed of `{field}`, which is scaled or normalised"
    way_out = f"make a field of what is the target; or watch `r2`, which has none; or leave `{field}` as it is"
    return error("O011", span, message, way_out)
