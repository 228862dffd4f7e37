"""model-too-large (B008)

Finds: a model that opens into more nodes than a graph can reasonably have.
Why:   a mistyped `repeat`, or blocks that hold several of each other, grow without end.
Bad:
    model:
      graph:
        hidden: {type: linear, out_features: 64, repeat: 1000000000, input: pixels}
        logits: {type: linear, out_features: 10}
Good:
    model:
      graph:
        hidden: {type: linear, out_features: 64, repeat: 10, input: pixels}
        logits: {type: linear, out_features: 10}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def model_too_large(span: Span, limit: str) -> Diagnostic:
    """`limit`: what it goes beyond, in words."""
    return error("B008", span, f"the model opens into {limit} here", "look at the numbers of copies")
