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

from declarative_train.diagnostics.diagnostic import Diagnostic, Related, error
from declarative_train.recipe.draft import Draft
from declarative_train.recipe.sections.parallelism import Pipeline

SPLIT_BACKWARD = frozenset({"dualpipev", "interleaved_zero_bubble", "zbv"})


def check(draft: Draft) -> Iterator[Diagnostic]:
    parallelism, training = draft.parallelism, draft.training
    if isinstance(parallelism, Pipeline) and parallelism.schedule in SPLIT_BACKWARD and training and training.compile:
        yield error(
            "P010",
            draft.span("training.compile"),
            f"torch cannot compile stages for {parallelism.schedule}",
            "set training.compile to false, or parallelism.schedule to interleaved_1f1b",
            (Related(draft.span("parallelism.schedule"), parallelism.schedule),),
        )
