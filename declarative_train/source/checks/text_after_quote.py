"""text-after-quote (Y025)

Finds: more text after a closing quote.
Why:   a quoted value ends with its quote.
Bad:
    meta:
      owner: "me" and you
Good:
    meta:
      owner: "me and you"
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def text_after_quote(span: Span, quote: str) -> Diagnostic:
    way_out = "quote the whole text"
    if quote == '"':
        way_out += ' in single quotes: a `"` may stand inside them'
    return error("Y025", span, f"text goes on after the closing `{quote}`", way_out)
