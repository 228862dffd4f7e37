"""wrong-type (S003)

Finds: a value of another kind than the key takes: text for a number, a mapping for a list.
Why:   values are never converted silently; `"10"` is text, and `yes` is text too.
Bad:
    training:
      global_batch_size: many
Good:
    training:
      global_batch_size: 100
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, Fix, error
from declarative_train.terms.span import Span


def wrong_type(
    span: Span, name: str, found: str, wanted: str, help: str | None = None, fixes: tuple[Fix, ...] = ()
) -> Diagnostic:
    return error("S003", span, f"`{name}` is {found}; it takes {wanted}", help, fixes=fixes)
