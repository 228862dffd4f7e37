"""yaml-syntax (Y001)

Finds: text that is not YAML, in a way that no other rule describes better.
Why:   what cannot be read cannot be checked.
Bad:
    training: ,steps
Good:
    training:
      steps: 10
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def yaml_syntax(span: Span, message: str, help: str | None = None) -> Diagnostic:
    return error("Y001", span, message, help)
