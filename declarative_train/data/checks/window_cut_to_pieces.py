"""window-cut-to-pieces (D011)

Finds: windows over rows that are split one by one, by chance.
Why:   neighbours land in different sets, so that hardly a window stays whole.
Bad:
    data:
      window: {length: 16, stride: 1}
      split: {validation: {type: random, fraction: 0.2}}
Good:
    data:
      window: {length: 16, stride: 1}
      split: {validation: {type: last, fraction: 0.2}}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def window_cut_to_pieces(span: Span, name: str, kind: str, length: int) -> Diagnostic:
    return error(
        "D011",
        span,
        f"`{kind}` puts each row into `{name}` or not by itself, and a window takes {length} neighbours",
        "cut with `type: last` (the last rows) or `type: grouped` (whole groups)",
    )
