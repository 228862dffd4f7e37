"""cycle (W006)

Finds: nodes that wait for each other.
Why:   a graph is computed once, from the fields to the outputs; a loop has no first node.
Bad:
    model:
      graph:
        hidden: {type: linear, out_features: 32, input: logits}
        logits: {type: linear, out_features: 10}
Good:
    model:
      graph:
        hidden: {type: linear, out_features: 32, input: pixels}
        logits: {type: linear, out_features: 10}
"""

from __future__ import annotations

from collections.abc import Sequence

from declarative_train.diagnostics.diagnostic import Diagnostic, Related, error
from declarative_train.terms.span import Span


def cycle(span: Span, way: Sequence[str], places: Sequence[Span]) -> Diagnostic:
    """`way`: from a node through those that it reads, back to it; `places`: where each reads the next."""
    shown = " <- ".join(f"`{name}`" for name in way)
    steps = zip(places, way[:-1], way[1:], strict=True)
    related = tuple(Related(place, f"`{name}` reads `{read}`") for place, name, read in steps)
    message = f"nodes wait for each other: {shown}"
    return error("W006", span, message, "cut the loop at one of these inputs", related[1:])
