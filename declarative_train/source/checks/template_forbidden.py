"""template-forbidden (T008)

Finds: a part of Jinja that recipes do not have: macros, includes, blocks, `%` formatting, methods that are not safe.
Why:   a recipe is data: rendering it must be bounded, and must not reach outside.
Bad:
    meta:
      name: "{% include 'secrets.txt' %}"
Good:
    meta:
      name: "{{ 'a' if true else 'b' }}"
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def template_forbidden(span: Span, message: str, help: str | None = None) -> Diagnostic:
    return error("T008", span, message, help)
