"""tie-does-not-fit (U102)

Finds: a `tie` to a parameter that does not exist, that has another shape, or that is tied back.
Why:   tied parameters are one tensor in two places.
Bad:
    model:
      parameters:
        logits.weight: {tie: hiden.weight}
Good:
    model:
      graph:
        first: {type: linear, out_features: 64, input: pixels}
        second: {type: linear, out_features: 64, input: first}
        hidden: {input: second}
      parameters:
        second.weight: {tie: first.weight}
"""

from __future__ import annotations

from collections.abc import Mapping

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.diagnostics.suggest import did_you_mean, respelt
from declarative_train.terms.span import Span


def tie_does_not_fit(
    span: Span,
    name: str,
    shape: tuple[int, ...],
    tie: str,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    in_circle: bool = False,
) -> Diagnostic:
    if in_circle:
        return error("U102", span, f"`{name}` is tied to `{tie}`, and so to itself", "tie the others to one of them")
    if tie not in shapes:
        message, fixes = f"`{name}` is tied to `{tie}`, which does not exist", respelt(span, tie, shapes)
        return error("U102", span, message, did_you_mean(tie, shapes), fixes=fixes)
    fitting = [other for other, size in shapes.items() if size == shape and other != name]
    listed = f"of that shape: {', '.join(fitting[:6])}" if fitting else "no other parameter has that shape"
    return error("U102", span, f"`{name}` has shape {_shown(shape)}, `{tie}` has {_shown(shapes[tie])}", listed)


def _shown(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))})"
