"""missing-comma (Y024)

Finds: two entries of `[ ]` or `{ }` without a comma between them.
Why:   the two would become one text.
Bad:
    meta: {owner: me team: vision}
Good:
    meta: {owner: me, team: vision}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, Fix, error
from declarative_train.terms.span import Span


def missing_comma(span: Span, text: str, bracket: str, after: Span) -> Diagnostic:
    """`after`: the empty place behind the entry before."""
    return error(
        "Y024",
        span,
        f"a comma is missing before `{text}`, inside `{bracket}`",
        f"write `, {text}`",
        fixes=(Fix(after, ",", safe=False),),
    )
