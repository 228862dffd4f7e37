"""optimizer-does-not-fit (U103)

Finds: an optimizer that cannot update some of the parameters it is given, such as muon with a bias.
Why:   torch refuses them when the optimizer is made, on every rank.
Bad:
    training:
      optimizer: {type: muon, lr: 0.01}
Good:
    training:
      optimizer: {type: adamw, lr: 0.001}
"""

from __future__ import annotations

from declarative_train.components.component import Misfit
from declarative_train.diagnostics.diagnostic import Diagnostic, error, warning
from declarative_train.terms.span import Span


def optimizer_does_not_fit(span: Span, misfit: Misfit) -> Diagnostic:
    grade = warning if misfit.is_warning else error
    return grade("U103", span, misfit.message, misfit.help)
