"""no-gradient (G009)

Finds: a loss term from which no gradient comes back to any parameter, since a function on the way stops it, or one that
       torch cannot differentiate.
Why:   `detach`, comparisons, `argmax`, `int` and `one_hot` have no derivative, that of `round`, `floor` and `sign` is
       zero: the run ends well and has learned nothing, or fails in the first backward.
Bad:
    model:
      graph:
        chosen: float(logits > 0)
        far: mean(square(chosen), dim=-1)
    objective:
      losses: {far: {type: mean, input: far}}
      metrics: {accuracy: {input: logits, target: digit}}
Good:
    model:
      graph:
        chosen: sigmoid(logits)
        far: mean(square(chosen), dim=-1)
    objective:
      losses: {far: {type: mean, input: far}}
      metrics: {accuracy: {input: logits, target: digit}}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, Related, error
from declarative_train.terms.span import Span


def no_gradient(span: Span, term: str, input: str, stops: tuple[Related, ...]) -> Diagnostic:
    return error(
        "G009",
        span,
        f"the loss `{term}` teaches nothing: no gradient comes back from `{input}` to a parameter",
        f"take the function that stops it out of the loss's way; as a number to watch, `{input}` can be a metric",
        stops,
    )


def no_derivative(span: Span, term: str, input: str, stops: tuple[Related, ...]) -> Diagnostic:
    return error(
        "G009",
        span,
        f"the loss `{term}` cannot be learned from: a function on the way to `{input}` has no derivative",
        "`//` is for whole numbers: `floor(detach(x / y))` has its value",
        stops,
    )
