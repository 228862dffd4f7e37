"""bad-reuse (B007)

Finds: a `reuse` of something that cannot be called again.
Why:   reuse calls a node of the same graph once more with the same parameters, so there must be such a node.
Bad:
    model:
      graph:
        hidden: {type: linear, out_features: 32, input: pixels}
        again: {type: reuse, node: hiden}
        logits: {type: linear, out_features: 10}
Good:
    model:
      graph:
        hidden: {type: linear, out_features: 64, input: pixels}
        again: {type: reuse, node: hidden, input: pixels}
        both: hidden + again
        act: {input: both}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def bad_reuse(span: Span, message: str, help: str | None = None) -> Diagnostic:
    return error("B007", span, message, help)
