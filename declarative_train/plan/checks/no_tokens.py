"""no-tokens (R102)

Finds: a duration in tokens, where samples are not made of tokens.
Why:   what counts as tokens is the first sequence of token ids that the model reads; here it reads none.
Bad:
    evaluation: {every: 1000 tokens}
Good:
    evaluation: {every: 1 epoch}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def no_tokens(span: Span, duration: str) -> Diagnostic:
    return error("R102", span, f"{duration}: the samples here are not made of tokens", "count steps, epochs or samples")
