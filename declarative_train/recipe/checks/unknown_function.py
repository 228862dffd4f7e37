"""unknown-function (E003)

Finds: a function that expressions do not know.
Why:   the list is closed: everything in it is pure and known to the planner.
Bad:
    model:
      graph:
        hidden: {type: linear, out_features: 32, input: pixels}
        scaled: doubled(hidden)
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
from declarative_train.components.expressions.functions import FUNCTIONS
from declarative_train.diagnostics.diagnostic import Diagnostic, Fix, error
from declarative_train.diagnostics.suggest import is_slip
from declarative_train.terms.span import Span


def unknown_function(span: Span, problem: ExpressionError) -> Diagnostic:
    if problem.instead is None:
        return error("E003", span, problem.message, problem.help)
    typed, new = problem.instead
    safe = typed.endswith(f".{new}") or is_slip(typed, new, FUNCTIONS)
    return error("E003", span, problem.message, problem.help, fixes=(Fix(span, new, safe, typed),))
