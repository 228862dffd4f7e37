"""expression-form (E002)

Finds: a form of Python that expressions do not have, or one that uses no tensor.
Why:   expressions are read, never run: no attributes, loops, texts or conditions.
Bad:
    model:
      graph:
        hidden: {type: linear, out_features: 32, input: pixels}
        scaled: 1 + 2
        logits: {type: linear, out_features: 10}
Good:
    model:
      graph:
        hidden: {type: linear, out_features: 32, input: pixels}
        scaled: hidden * 2
        act: {input: scaled}
"""

from __future__ import annotations

from declarative_train.components.expressions.error import ExpressionError
from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def expression_form(span: Span, problem: ExpressionError) -> Diagnostic:
    return error("E002", span, problem.message, problem.help)
