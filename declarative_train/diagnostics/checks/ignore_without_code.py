"""ignore-without-code (I003)

Finds: a comment `# dtrain: ignore` that names no code.
Why:   it says neither what is accepted nor why; it hides nothing.
Bad:
    meta: {house: 010}   # dtrain: ignore
Good:
    meta: {house: 010}   # dtrain: ignore[Y021]
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, warning
from declarative_train.terms.span import Span


def ignore_without_code(span: Span, word: str) -> Diagnostic:
    return warning("I003", span, f"`{word}` names no code, and so hides nothing", f"write `{word}[CODE]`")
