"""objective-does-not-fit (O101)

Finds: a loss or metric that does not take its input, target or mask: shape, dtype, or number of classes.
Why:   losses never broadcast: a target of another shape would train on nonsense without a word.
Bad:
    objective:
      loss: {type: mse, input: logits, target: pixels}
Good:
    objective:
      loss: {type: cross_entropy, input: logits, target: digit}
"""

from __future__ import annotations

from declarative_train.components.component import Misfit
from declarative_train.diagnostics.diagnostic import Diagnostic, Related, error, warning
from declarative_train.terms.span import Span


def objective_does_not_fit(span: Span, misfit: Misfit, made: tuple[Related, ...] = ()) -> Diagnostic:
    """A warning where the component says that it can be computed but is hardly meant."""
    grade = warning if misfit.is_warning else error
    return grade("O101", span, misfit.message, misfit.help, made)
