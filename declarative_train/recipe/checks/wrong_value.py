"""wrong-value (S004)

Finds: a value of the right kind that the key does not allow: out of its range, or not one of its words.
Why:   torch would refuse it after launch, or do something else than what was meant.
Bad:
    training:
      global_batch_size: -1
Good:
    training:
      global_batch_size: 100
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, Fix, error
from declarative_train.terms.span import Span


def wrong_value(span: Span, message: str, help: str | None = None, fixes: tuple[Fix, ...] = ()) -> Diagnostic:
    return error("S004", span, message, help, fixes=fixes)
