"""unknown-term (O002)

Finds: a metric that is `of` a loss term which does not exist.
Why:   the metric takes its input, target and mask from that term.
Bad:
    objective:
      metrics: {accuracy: {of: kind}}
Good:
    objective:
      metrics: {accuracy: {of: loss}}
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.diagnostics.suggest import did_you_mean, respelt
from declarative_train.recipe.draft import Draft


def check(draft: Draft) -> Iterator[Diagnostic]:
    if draft.objective is None:
        return
    known = draft.objective.losses
    for name, metric in draft.objective.metrics.items():
        if metric.of is not None and metric.of not in known:
            span = draft.span(f"objective.metrics.{name}.of")
            fixes = respelt(span, metric.of, known)
            yield error("O002", span, f"there is no loss `{metric.of}`", did_you_mean(metric.of, known), fixes=fixes)
