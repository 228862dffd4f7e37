"""no-run-length (R004)

Finds: a training section with neither `epochs` nor `steps`.
Why:   the learning-rate schedule, warm-up and every duration in % rest on the length of the run.
Bad:
    training:
      epochs: null
Good:
    training:
      epochs: 5
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.recipe.draft import Draft


def check(draft: Draft) -> Iterator[Diagnostic]:
    training = draft.training
    if draft.is_written("training.epochs") or draft.is_written("training.steps"):
        return  # one that is left empty is told
    if training is not None and training.epochs is None and training.steps is None:
        yield error(
            "R004",
            draft.span.key("training"),
            "`training` does not say how long",
            "add `epochs: 10` or `steps: 1000`",
            rests_on="all files",
        )
