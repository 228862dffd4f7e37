"""taken-name (O005)

Finds: a set called `training` or `train`, or a metric called `loss`.
Why:   the training set is what the other sets leave over; `training/...` are its numbers, and `<set>/loss` is the
       total loss.
Bad:
    objective:
      metrics: {loss: {type: accuracy}}
Good:
    objective:
      metrics: {accuracy: {type: accuracy}}
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.recipe.draft import Draft


def check(draft: Draft) -> Iterator[Diagnostic]:
    for name in ("training", "train"):
        if draft.split is not None and name in draft.split:
            span = draft.span.key(f"data.split.{name}")
            message = f"what data.split leaves over is the training set: no other set can be called `{name}`"
            yield error("O005", span, message, "leave it out, or give it another name")
    if draft.objective is not None and "loss" in draft.objective.metrics:
        span = draft.span.key("objective.metrics.loss")
        yield error("O005", span, "`loss` is the total loss: no metric can have its name", "give it another name")
