"""nothing-trains (U104)

Finds: a model all of whose parameters are frozen.
Why:   there is nothing to train; mostly a selector reaches further than was meant.
Bad:
    model:
      parameters:
        "*": {frozen: true}
Good:
    model:
      parameters:
        hidden: {frozen: true}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def nothing_trains(span: Span) -> Diagnostic:
    return error("U104", span, "every parameter is frozen: there is nothing to train", "leave something to learn")
