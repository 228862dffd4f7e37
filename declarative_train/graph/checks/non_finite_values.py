"""non-finite-values (G011)

Finds: a node computed from fields alone that gives nan or an infinite number for real rows, on its way into the model
       or into a loss.
Why:   one such number makes the loss of its step nan, and the run stops there: a logarithm or root of what may be
       negative, a division by what may be zero.
Bad:
    model:
      graph:
        scaled: log(pixels - 0.5)
        hidden: {type: linear, out_features: 64, input: scaled}
        act: {type: relu, input: hidden}
        logits: {type: linear, out_features: 10, input: act}
Good:
    model:
      graph:
        scaled: log(pixels + 1)
        hidden: {type: linear, out_features: 64, input: scaled}
        act: {type: relu, input: hidden}
        logits: {type: linear, out_features: 10, input: act}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def non_finite_values(span: Span, shown: str) -> Diagnostic:
    """`shown`: the inputs of the row, and where it stands."""
    return error(
        "G011",
        span,
        f"this is not a finite number where {shown}",
        "keep the numbers inside: `clamp`, `where`, or a small constant added",
    )
