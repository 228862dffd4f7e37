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


def count_from_model(span: Span, port: str, name: str, made: Span | None, *, is_drawn: bool = False) -> Diagnostic:
    """`is_drawn`: no parameter has a part in it, only random numbers."""
    reason = "it is drawn anew in each step" if is_drawn else "the model computes it"
    way_out = "compute it from fields alone, by nodes without parameters or draws"
    return error(
        "O102",
        span,
        f"the {port} `{name}` decides how many items count, and {reason}",
        f"{way_out}; a column of the source can hold what was drawn once" if is_drawn else way_out,
        () if made is None else (Related(made, f"`{name}` is made here"),),
    )
