"""template-failed (T006)

Finds: a template that fails while it is rendered: a division by zero, text plus number, an index out of range.
Why:   it has no value.
Bad:
    vars: {sizes: [1, 2]}
    meta:
      size: "{{ vars.sizes + 1 }}"
Good:
    vars: {sizes: [1, 2]}
    meta:
      size: "{{ vars.sizes[0] + 1 }}"
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def template_failed(span: Span, message: str) -> Diagnostic:
    return error("T006", span, f"this template fails: {message}")
