"""token-by-token (D017)

Finds: a text source without a window.
Why:   every sample would be a single token, which has nothing to be predicted from.
Bad:
    data:
      source: {type: text, path: data/people.csv}
      fields:
        tokens: {column: tokens}
Good:
    data:
      source: {type: text, path: data/people.csv}
      window: {length: 17, stride: 16}
      fields:
        tokens: {column: tokens, rows: ":-1"}
        next: {column: tokens, rows: "1:"}
      split: {validation: {type: last, fraction: 0.2}}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, warning
from declarative_train.terms.span import Span


def token_by_token(span: Span) -> Diagnostic:
    return warning(
        "D017", span, "without a window every sample is one token", "add `window: {length: N + 1, stride: N}`"
    )
