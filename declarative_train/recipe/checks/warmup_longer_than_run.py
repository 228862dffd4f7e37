"""warmup-longer-than-run (R005)

Finds: a warm-up that takes the whole run or more.
Why:   the learning rate would never reach the value that the recipe names.
Bad:
    training:
      epochs: 5
      lr_schedule: {type: cosine, warmup: 10 epochs}
Good:
    training:
      epochs: 5
      lr_schedule: {type: cosine, warmup: 1 epoch}
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.diagnostics.diagnostic import Diagnostic, Related, error
from declarative_train.recipe.draft import Draft
from declarative_train.recipe.sections.training import share_of_run


def check(draft: Draft) -> Iterator[Diagnostic]:
    training = draft.training
    if training is None or training.lr_schedule.warmup is None:
        return
    share = share_of_run(training.lr_schedule.warmup, training)
    if share is not None and share >= 1:
        length = "epochs" if training.epochs is not None else "steps"
        yield error(
            "R005",
            draft.span("training.lr_schedule.warmup"),
            f"a warm-up of {training.lr_schedule.warmup} leaves nothing of the run",
            "make it shorter, such as `5%`",
            (Related(draft.span(f"training.{length}"), "the length of the run"),),
        )
