"""function-arguments (E004)

Finds: arguments that a function of an expression does not take.
Why:   torch would refuse them after launch.
Bad:
    model:
      graph:
        hidden: {type: linear, out_features: 32, input: pixels}
        scaled: softmax(hidden)
        logits: {type: linear, out_features: 10}
Good:
    model:
      graph:
        hidden: {type: linear, out_features: 32, input: pixels}
        scaled: softmax(hidden, dim=-1)
        act: {input: scaled}
"""

from __future__ import annotations

from declarative_train.components.expressions.error import ExpressionError
from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def function_arguments(span: Span, problem: ExpressionError) -> Diagnostic:
    return error("E004", span, problem.message, problem.help)
