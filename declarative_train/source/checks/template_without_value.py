"""template-without-value (T009)

Finds: a template whose result is no value of a recipe: a function, a method.
Why:   only numbers, texts, booleans, null, lists and mappings can stand in a recipe.
Bad:
    meta:
      steps: "{{ range }}"
Good:
    meta:
      steps: "{{ range(3) }}"
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def template_without_value(span: Span, kind: str) -> Diagnostic:
    return error("T009", span, f"this template gives {kind}", "call it, or name the value that is meant")
