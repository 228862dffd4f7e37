"""schedule-needs-microbatches (P007)

Finds: a number of microbatches that the pipeline schedule cannot work with.
Why:   1f1b and dualpipev fill every stage before the first backward; the interleaved ones go in equal rounds.
       An accumulation step is so many microbatches more.
Bad:
    parallelism: {mode: pipeline, stages: 2, schedule: 1f1b, microbatches: 1}
    layout: {gpus: 2}
Good:
    parallelism: {mode: pipeline, stages: 2, schedule: 1f1b, microbatches: 2}
    layout: {gpus: 2}
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.components.pipeline_schedules import PIPELINE_SCHEDULES
from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.recipe.batch import accumulation, num_pipeline_ranks
from declarative_train.recipe.draft import Draft
from declarative_train.recipe.model.tree import num_nodes
from declarative_train.terms.amounts import counted


def check(draft: Draft) -> Iterator[Diagnostic]:
    parallelism, layout, training = draft.pipeline, draft.layout, draft.training
    if parallelism is None or layout is None or training is None:
        return
    ranks = num_pipeline_ranks(parallelism, layout)
    steps = accumulation(training, parallelism, layout)
    if ranks is None or steps is None or parallelism.stages % ranks:
        return
    if draft.scope is not None and num_nodes(draft.scope) < parallelism.stages:
        return  # P017 is told: with fewer stages, fewer microbatches do
    number, schedule = steps * parallelism.microbatches, PIPELINE_SCHEDULES[parallelism.schedule]
    most = 2 * number + parallelism.stages
    fits = [each for each in range(1, most + 1) if schedule.takes(each, ranks, parallelism.stages)]
    if number in fits:
        return
    made = f" ({steps} accumulation steps x {parallelism.microbatches})" if steps > 1 else ""
    rule = (
        f"at least {parallelism.stages}, one for each stage"
        if schedule.fills_first
        else f"a multiple of its {counted(number // ranks, 'round')} over {ranks} ranks"
    )
    near = [max((each for each in fits if each < number), default=0), min(each for each in fits if each > number)]
    values = " or ".join(str(each) for each in near if each and each % steps == 0) or str(near[1])
    yield error(
        "P007",
        draft.span("parallelism.microbatches"),
        f"{parallelism.schedule} needs {rule}; here: {counted(number, 'microbatch')}{made}",
        f"make it {values} in all" if steps > 1 else f"set parallelism.microbatches to {values}",
    )
