r"""wrong-escape (Y027)

Finds: a backslash in double quotes that begins no YAML escape.
Why:   in double quotes `\` is special; regular expressions and Windows paths belong in single quotes.
Bad:
    meta: {pattern: "\d+"}
Good:
    meta: {pattern: '\d+'}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def wrong_escape(span: Span, text: str) -> Diagnostic:
    return error(
        "Y027",
        span,
        f"`{text}` is no escape in double quotes",
        f"use single quotes, or write `\\{text}`",
    )
