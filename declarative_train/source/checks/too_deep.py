"""too-deep (Y015)

Finds: lists and mappings nested more than 64 deep.
Why:   no recipe needs it, and readers of recipes need a bound.
Bad:
    meta:
      [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1
      ]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]
Good:
    meta: {grid: [[[[1]]]]}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def too_deep(span: Span, limit: int) -> Diagnostic:
    return error("Y015", span, f"values are nested more than {limit} deep here", "flatten it, or close a bracket")
