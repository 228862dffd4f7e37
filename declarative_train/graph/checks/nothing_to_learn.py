"""nothing-to-learn (O103)

Finds: a loss term whose input does not depend on any parameter.
Why:   it is a constant: its gradient is zero, and torch fails in the first backward when it is the only term.
Bad:
    model:
      graph:
        size: mean(pixels ** 2, dim=-1)
    objective:
      losses:
        kind: {type: cross_entropy, input: logits, target: digit}
        size: {type: mean, input: size}
      metrics: {accuracy: {of: kind}}
Good:
    model:
      graph:
        size: mean(hidden ** 2, dim=-1)
    objective:
      losses:
        kind: {type: cross_entropy, input: logits, target: digit}
        size: {type: mean, input: size}
      metrics: {accuracy: {of: kind}}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def nothing_to_learn(span: Span, term: str, input: str) -> Diagnostic:
    return error(
        "O103",
        span,
        f"the loss `{term}` cannot change: no parameter stands between the fields and `{input}`",
        "give it a node of the model, or watch the number as a metric",
    )
