"""expression-syntax (E001)

Finds: an expression that cannot be read.
Why:   it is one formula in Python's syntax, on names of nodes and fields.
Bad:
    model:
      graph:
        hidden: {type: linear, out_features: 32, input: pixels}
        scaled: hidden * * 2
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


def expression_syntax(span: Span, problem: ExpressionError) -> Diagnostic:
    return error("E001", span, problem.message, problem.help)
