"""field-of-another-run (D031)

Finds: a field that reads its columns in another way than the run whose weights the model starts from: another
       `normalize`, other class numbers, columns in another order.
Why:   the weights would see other numbers than those that they were trained on, and the predictions would be wrong
       without an error. Statistics and class numbers come from the run named by `model.weights`; `statistics: data`
       there makes them anew, for weights that are trained again on them.
Bad:
    data:
      fields:
        pixels: {columns: "p*", normalize: minmax}
    model: {weights: earlier}
Good:
    data:
      fields:
        pixels: {columns: "p*", normalize: minmax}
    model: {weights: {path: earlier, statistics: data}}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, Related, error
from declarative_train.terms.span import Span


def field_of_another_run(span: Span, field: str, found: str, origin: str, weights: Span) -> Diagnostic:
    message = f"field `{field}`: {found} in {origin}, whose weights the model starts from"
    way_out = "write it as it was, or add `statistics: data` to model.weights to make statistics and classes anew"
    return error("D031", span, message, way_out, (Related(weights, f"the weights are those of {origin}"),))
