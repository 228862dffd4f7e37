"""empty-set (D010)

Finds: a set without a sample.
Why:   nothing can be learned or measured on it.
Bad:
    data:
      split: {validation: {type: where, column: label, equals: 11}}
Good:
    data:
      split: {validation: {type: where, column: label, equals: 9}}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def empty_set(span: Span, name: str, message: str, help: str | None) -> Diagnostic:
    return error("D010", span, f"set `{name}` is empty: {message}", help)
