"""init-does-not-fit (U101)

Finds: start values chosen for a parameter whose shape the rule cannot fill.
Why:   rules that count inputs and outputs have no meaning for a bias.
Bad:
    model:
      parameters:
        hidden: {init: {type: orthogonal}}
Good:
    model:
      parameters:
        hidden.weight: {init: {type: orthogonal}}
"""

from __future__ import annotations

from declarative_train.components.component import Misfit
from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def init_does_not_fit(span: Span, parameter: str, misfit: Misfit) -> Diagnostic:
    return error("U101", span, f"`{parameter}`: {misfit.message}", misfit.help)
