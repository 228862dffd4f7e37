"""metric-edges-twice (O003)

Finds: a metric with both `of` and edges of its own, or with a target but no input.
Why:   `of` borrows input, target and mask together; a mixture would be two things at once.
Bad:
    objective:
      metrics: {accuracy: {of: loss, input: logits}}
Good:
    objective:
      metrics: {accuracy: {of: loss}}
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.diagnostics.diagnostic import Diagnostic, Related, error
from declarative_train.recipe.draft import Draft


def check(draft: Draft) -> Iterator[Diagnostic]:
    if draft.objective is None:
        return
    for name, metric in draft.objective.metrics.items():
        path = f"objective.metrics.{name}"
        own = [key for key in ("input", "target", "mask") if getattr(metric, key) is not None]
        if metric.of is not None and own:
            yield error(
                "O003",
                draft.span.key(f"{path}.{own[0]}"),
                f"`{name}` is of `{metric.of}` and has its own {own[0]}",
                "leave one of them out",
                (Related(draft.span(f"{path}.of"), "borrowed here"),),
            )
        elif own and "input" not in own:
            yield error(
                "O003",
                draft.span.key(f"{path}.{own[0]}"),
                f"`{name}` has its own {own[0]}, but no input",
                "add `input`, or borrow all with `of`",
            )
