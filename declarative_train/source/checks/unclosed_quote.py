"""unclosed-quote (Y002)

Finds: a quote that is opened and never closed, or closed only by the opening quote of a later value.
Why:   everything in between becomes part of the text.
Bad:
    meta:
      owner: "me
      team: vision
Good:
    meta:
      owner: "me"
      team: vision
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def unclosed_quote(span: Span, quote: str, closed_on: int | None) -> Diagnostic:
    """`closed_on`: the line of the next such quote, which was meant to open another text."""
    if closed_on is None:
        return error("Y002", span, f"the quote `{quote}` is never closed", f"add `{quote}` where the text ends")
    return error(
        "Y002",
        span,
        f"the quote `{quote}` is closed only on line {closed_on}, by the quote of another text",
        f"add `{quote}` where the text on line {span.line} ends",
    )
