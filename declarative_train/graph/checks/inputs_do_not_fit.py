"""inputs-do-not-fit (G001)

Finds: a layer that does not take what arrives at its inputs: the shape, the dtype, or the range of whole numbers; or a
       field of the layer that does not go with them.
Why:   torch would say so in its own words, after launch, on every rank.
Bad:
    model:
      graph:
        hidden: {type: conv2d, out_channels: 8, kernel_size: 3, input: pixels}
Good:
    model:
      graph:
        hidden: {type: linear, out_features: 32, input: pixels}
"""

from __future__ import annotations

from declarative_train.components.component import Misfit
from declarative_train.diagnostics.diagnostic import Diagnostic, Related, error, warning
from declarative_train.terms.span import Span


def inputs_do_not_fit(span: Span, misfit: Misfit, made: tuple[Related, ...] = ()) -> Diagnostic:
    grade = warning if misfit.is_warning else error
    return grade("G001", span, misfit.message, misfit.help, made)
