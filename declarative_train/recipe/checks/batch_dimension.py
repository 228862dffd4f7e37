"""batch-dimension (E005)

Finds: an expression that indexes, reduces or moves dimension 0.
Why:   dimension 0 is the batch; what reads across it depends on how the batch is split.
Bad:
    model:
      graph:
        hidden: {type: linear, out_features: 32, input: pixels}
        scaled: mean(hidden, dim=0)
        logits: {type: linear, out_features: 10}
Good:
    model:
      graph:
        hidden: {type: linear, out_features: 32, input: pixels}
        scaled: hidden - mean(hidden, dim=-1, keepdim=True)
        act: {input: scaled}
"""

from __future__ import annotations

from declarative_train.components.expressions.error import ExpressionError
from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def batch_dimension(span: Span, problem: ExpressionError) -> Diagnostic:
    return error("E005", span, problem.message, problem.help)
