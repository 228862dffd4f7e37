"""Messages about tensor expressions.

Each function builds the message of one diagnostic code. Its docstring is the manual page of that code.
"""

from __future__ import annotations

from declarative_train.components.expressions.functions import FUNCTIONS
from declarative_train.components.expressions.tree import ExpressionError
from declarative_train.core.diagnostics.diagnostic import Diagnostic, Fix, error
from declarative_train.core.diagnostics.suggest import is_slip
from declarative_train.core.span import Span


def expression_syntax(span: Span, problem: ExpressionError) -> Diagnostic:
    """expression-syntax (E001)

    Finds: an expression that cannot be parsed.
    Why:   an expression is one formula in Python's syntax over names of nodes and fields.
    Diff:
        model:
          graph:
            hidden: {type: linear, out_features: 32, input: pixels}
    -       scaled: hidden * * 2
    -       logits: {type: linear, out_features: 10}
    +       scaled: hidden * 2
    +       act: {input: scaled}
    """
    return error("E001", span, problem.message, problem.help)


def expression_form(span: Span, problem: ExpressionError) -> Diagnostic:
    """expression-form (E002)

    Finds: Python syntax that expressions do not support, or an expression that uses no tensor.
    Why:   expressions are parsed, but not executed as Python: they have no attributes, loops, strings or conditions.
    Diff:
        model:
          graph:
            hidden: {type: linear, out_features: 32, input: pixels}
    -       scaled: 1 + 2
    -       logits: {type: linear, out_features: 10}
    +       scaled: hidden * 2
    +       act: {input: scaled}
    """
    return error("E002", span, problem.message, problem.help)


def unknown_function(span: Span, problem: ExpressionError) -> Diagnostic:
    """unknown-function (E003)

    Finds: a function that expressions do not have.
    Why:   only listed functions are allowed: they are pure, and the planner knows their cost.
    Diff:
        model:
          graph:
            hidden: {type: linear, out_features: 32, input: pixels}
    -       scaled: doubled(hidden)
    -       logits: {type: linear, out_features: 10}
    +       scaled: hidden * 2
    +       act: {input: scaled}
    """
    if problem.instead is None:
        return error("E003", span, problem.message, problem.help)
    typed, new = problem.instead
    safe = typed.endswith(f".{new}") or is_slip(typed, new, FUNCTIONS)
    return error("E003", span, problem.message, problem.help, fixes=(Fix(span, new, safe, typed),))


def function_arguments(span: Span, problem: ExpressionError) -> Diagnostic:
    """function-arguments (E004)

    Finds: wrong arguments of a function in an expression.
    Why:   torch would reject them after launch.
    Diff:
        model:
          graph:
            hidden: {type: linear, out_features: 32, input: pixels}
    -       scaled: cumsum(hidden)
    -       logits: {type: linear, out_features: 10}
    +       scaled: cumsum(hidden, dim=-1)
    +       act: {input: scaled}
    """
    return error("E004", span, problem.message, problem.help)


def batch_dimension(span: Span, problem: ExpressionError) -> Diagnostic:
    """batch-dimension (E005)

    Finds: an expression that indexes, reduces or moves dimension 0, or a `B` that is not at the start of a shape.
    Why:   dimension 0 is the batch, written `B` in a shape. A result that is computed across the samples of a batch
           would depend on how the batch is split.
    Diff:
        model:
          graph:
            hidden: {type: linear, out_features: 32, input: pixels}
    -       scaled: mean(hidden, dim=0)
    -       logits: {type: linear, out_features: 10}
    +       scaled: hidden - mean(hidden, dim=-1, keepdim=True)
    +       act: {input: scaled}
    """
    return error("E005", span, problem.message, problem.help)
