"""metric-of-which-loss (O001)

Finds: a metric that does not say which of several losses it belongs to.
Why:   a metric borrows input, target and mask of a loss term; with two, either could be meant.
Bad:
    objective:
      losses:
        kind:  {type: cross_entropy, input: logits, target: digit}
        again: {type: cross_entropy, input: logits, target: digit, weight: 0.5}
      metrics: [accuracy]
Good:
    objective:
      losses:
        kind:  {type: cross_entropy, input: logits, target: digit}
        again: {type: cross_entropy, input: logits, target: digit, weight: 0.5}
      metrics: {accuracy: {of: kind}}
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.recipe.draft import Draft


def check(draft: Draft) -> Iterator[Diagnostic]:
    objective = draft.objective
    if objective is None or len(objective.losses) < 2:
        return
    for name, metric in objective.metrics.items():
        if metric.of is None and metric.input is None:
            yield error(
                "O001",
                draft.span.key(f"objective.metrics.{name}"),
                f"`{name}` does not say which of {len(objective.losses)} losses it belongs to",
                f"write `{name}: {{of: {next(iter(objective.losses))}}}`; losses: {', '.join(objective.losses)}",
            )
