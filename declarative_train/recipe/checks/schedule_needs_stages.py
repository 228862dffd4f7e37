"""schedule-needs-stages (P006)

Finds: a pipeline schedule with another number of stages per rank than it works with.
Why:   gpipe and 1f1b hold one stage on each rank, zbv and dualpipev exactly two, the looped ones two or more.
Bad:
    parallelism: {mode: pipeline, stages: 4, schedule: 1f1b, microbatches: 4}
    layout: {gpus: 2}
Good:
    parallelism: {mode: pipeline, stages: 2, schedule: 1f1b, microbatches: 4}
    layout: {gpus: 2}
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.components.pipeline_schedules import PIPELINE_SCHEDULES
from declarative_train.diagnostics.diagnostic import Diagnostic, Related, error
from declarative_train.recipe.batch import num_pipeline_ranks
from declarative_train.recipe.draft import Draft


def check(draft: Draft) -> Iterator[Diagnostic]:
    parallelism, layout = draft.pipeline, draft.layout
    if parallelism is None or layout is None:
        return
    ranks = num_pipeline_ranks(parallelism, layout)
    if ranks is None or ranks == 1 or parallelism.stages % ranks:
        return
    held = parallelism.stages // ranks
    schedule = PIPELINE_SCHEDULES[parallelism.schedule]
    if schedule.holds(held):
        return
    least, most = schedule.stages_per_rank
    wanted = f"{least} or more" if most is None else f"exactly {least}"
    others = [name for name, each in PIPELINE_SCHEDULES.items() if each.holds(held)]
    yield error(
        "P006",
        draft.span("parallelism.stages"),
        f"{parallelism.schedule} needs {wanted} {'stage' if wanted.endswith('1') else 'stages'} on each rank; "
        f"{parallelism.stages} stages on {ranks} ranks are {held}",
        f"set parallelism.stages to {ranks * least}, or parallelism.schedule to {', '.join(others)}",
        (Related(draft.span("parallelism.schedule"), parallelism.schedule),),
    )
