"""duplicate-key (Y003)

Finds: a key that stands twice in one mapping.
Why:   the second would silently replace the first.
Bad:
    training:
      epochs: 3
      epochs: 4
Good:
    training:
      epochs: 3
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, Related, error
from declarative_train.terms.span import Span


def duplicate_key(span: Span, name: str, first: Span) -> Diagnostic:
    return error(
        "Y003",
        span,
        f"`{name}` stands twice in this mapping, first on line {first.line}",
        "keep one of them",
        (Related(first, "first here"),),
    )
