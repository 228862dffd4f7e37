"""missing-colon (Y026)

Finds: a line among keys and values that has no `: `.
Why:   it is neither a key nor part of the value above it.
Bad:
    meta:
      owner: me
      team
      site: here
Good:
    meta:
      owner: me
      team: vision
      site: here
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def missing_colon(span: Span, text: str) -> Diagnostic:
    return error("Y026", span, f"`{text}` is no key: a `:` and a value are missing", f"write `{text}: ...`")
