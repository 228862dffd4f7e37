"""template-syntax (T001)

Finds: a template that is not written in Jinja's expression syntax.
Why:   what cannot be read has no value.
Bad:
    vars: {width: 32}
    meta:
      half: "{{ vars.width // }}"
Good:
    vars: {width: 32}
    meta:
      half: "{{ vars.width // 2 }}"
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def template_syntax(span: Span, message: str, help: str | None = None) -> Diagnostic:
    return error("T001", span, message, help)
