"""count-from-model (O102)

Finds: a mask, or a target whose values decide how many items count, that is computed by the model.
Why:   a term is divided by the number of valid items of the whole global batch, which must be known before the first
       backward; only what is computed from fields alone is.
Bad:
    model:
      graph:
        sure: amax(hidden, dim=-1) > 0
    objective:
      loss: {type: cross_entropy, input: logits, target: digit, mask: sure}
Good:
    model:
      graph:
        sure: amax(pixels, dim=-1) > 0
    objective:
      loss: {type: cross_entropy, input: logits, target: digit, mask: sure}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, Related, error
from declarative_train.terms.span import Span


def count_from_model(span: Span, port: str, name: str, made: Span | None) -> Diagnostic:
    return error(
        "O102",
        span,
        f"the {port} `{name}` decides how many items count, and the model computes it",
        "compute it from fields alone, by nodes without parameters or draws; or multiply the term's input by it",
        () if made is None else (Related(made, f"`{name}` is made here"),),
    )
