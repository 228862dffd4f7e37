"""missing-key (S002)

Finds: a section or component without a key that it cannot do without.
Why:   there is no value that would be right for everyone.
Bad:
    training:
      optimizer: {type: sgd}
Good:
    training:
      optimizer: {type: sgd, lr: 0.1}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def missing_key(span: Span, name: str, where: str, wanted: str = "", help: str | None = None) -> Diagnostic:
    return error("S002", span, f"{where} needs `{name}`", help or f"add `{name}: {wanted or '...'}`")
