"""template-too-costly (T005)

Finds: a template that would need much time or memory: huge powers, repeated text, long ranges.
Why:   a recipe is read in an instant, on any machine, whoever wrote it.
Bad:
    meta:
      size: "{{ 10 ** 10 ** 10 }}"
Good:
    meta:
      size: "{{ 10 ** 10 }}"
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def template_too_costly(span: Span, message: str) -> Diagnostic:
    return error("T005", span, message, "write the value itself")
