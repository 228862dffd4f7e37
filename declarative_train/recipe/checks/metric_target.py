"""metric-target (O007)

Finds: a metric that compares with a target, and has none; or one that has a target and no use for it.
Why:   a metric borrows the target of its loss term, which may have none, such as `mean`.
Bad:
    objective:
      metrics: {accuracy: {input: logits}}
Good:
    objective:
      metrics: {accuracy: {input: logits, target: digit}}
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.recipe.draft import Draft


def check(draft: Draft) -> Iterator[Diagnostic]:
    objective = draft.objective
    if objective is None:
        return
    only = next(iter(objective.losses)) if len(objective.losses) == 1 else None
    for name, metric in objective.metrics.items():
        key, kind = draft.span.key(f"objective.metrics.{name}"), metric.component.type
        if metric.input is not None and metric.of is None:
            if metric.component.needs_target and metric.target is None:
                yield error("O007", key, f"{kind} needs a target", "add `target: FIELD`")
            if not metric.component.needs_target and metric.target is not None:
                span = draft.span.key(f"objective.metrics.{name}.target")
                yield error("O007", span, f"{kind} compares with nothing: it has no use for a target", "leave it out")
        term = objective.losses.get(metric.of or only or "")
        borrows = metric.input is None and metric.target is None
        if borrows and term is not None and term.target is None and metric.component.needs_target:
            if term.component.needs_target:
                continue  # the loss is told to have one
            hint = f"write `{name}: {{input: NODE, target: FIELD}}`"
            yield error("O007", key, f"{kind} needs a target, and the loss `{metric.of or only}` has none", hint)
