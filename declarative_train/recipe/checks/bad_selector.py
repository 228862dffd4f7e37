"""bad-selector (U001)

Finds: a key of `model.parameters` that cannot be read as a selector.
Why:   a selector that means something else than it seems to would train the wrong parameters.
Bad:
    model:
      parameters:
        hidden.{3..0}: {frozen: true}
Good:
    model:
      parameters:
        hidden.*: {frozen: true}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def bad_selector(span: Span, selector: str, problem: str) -> Diagnostic:
    return error("U001", span, f"`{selector}` is not a selector: {problem}")
