"""open-port (W005)

Finds: an input that must be wired and is not.
Why:   only the first input takes the node above by itself, and the first node of the model has none above.
Bad:
    model:
      graph:
        hidden: {type: bilinear, out_features: 32, input: pixels}
        logits: {type: linear, out_features: 10}
Good:
    model:
      graph:
        hidden: {type: bilinear, out_features: 32, inputs: [pixels, pixels]}
        logits: {type: linear, out_features: 10}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def open_port(span: Span, message: str, help: str) -> Diagnostic:
    return error("W005", span, message, help)
