"""template-in-key (T007)

Finds: a key that holds a template.
Why:   names are what `extends`, `--set` and messages point at; they must stand in the file as they are.
Bad:
    meta:
      "run_{{ vars.width }}": 1
Good:
    meta:
      run_32: 1
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def template_in_key(span: Span, text: str) -> Diagnostic:
    return error("T007", span, f"the key `{text}` holds a template; keys are never templates", "write the name itself")
