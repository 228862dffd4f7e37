"""zero-bubble-compile (P010)

Finds: `compile: true` with interleaved_zero_bubble, zbv or dualpipev.
Why:   these schedules split each backward in two, which torch refuses for compiled stages.
Bad:
    parallelism: {mode: pipeline, stages: 4, schedule: zbv, microbatches: 4}
    layout: {gpus: 2}
    training: {compile: true}
Good:
    parallelism: {mode: pipeline, stages: 2, schedule: 1f1b, microbatches: 4}
    layout: {gpus: 2}
    training: {compile: true}
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.components.pipeline_schedules import PIPELINE_SCHEDULES
from declarative_train.diagnostics.diagnostic import Diagnostic, Related, error
from declarative_train.recipe.draft import Draft


def check(draft: Draft) -> Iterator[Diagnostic]:
    parallelism, training = draft.pipeline, draft.training
    if parallelism is None or training is None or not training.compile:
        return
    if PIPELINE_SCHEDULES[parallelism.schedule].splits_backward:
        yield error(
            "P010",
            draft.span("training.compile"),
            f"torch cannot compile stages for {parallelism.schedule}",
            "set training.compile to false, or parallelism.schedule to interleaved_1f1b",
            (Related(draft.span("parallelism.schedule"), parallelism.schedule),),
        )
