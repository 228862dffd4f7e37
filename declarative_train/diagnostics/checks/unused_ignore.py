"""unused-ignore (I001)

Finds: a `# dtrain: ignore[CODE]` that hides nothing.
Why:   it would hide the next mistake of that kind, which nobody has looked at.
Bad:
    meta: {owner: me}    # dtrain: ignore[Y021]
Good:
    meta: {house: 010}   # dtrain: ignore[Y021]
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, Fix, warning
from declarative_train.terms.span import Span


def unused_ignore(code: Span, word: str, edit: Fix) -> Diagnostic:
    return warning("I001", code, f"nothing here is a `{word}`", f"take `{word}` out of the comment", fixes=(edit,))
