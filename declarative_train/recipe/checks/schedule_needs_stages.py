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

from declarative_train.diagnostics.diagnostic import Diagnostic, Related, error
from declarative_train.recipe.batch import num_pipeline_ranks
from declarative_train.recipe.draft import Draft
from declarative_train.recipe.sections.parallelism import Pipeline

STAGES_PER_RANK: dict[str, tuple[int, int | None]] = {  # least, most
    "1f1b": (1, 1),
    "dualpipev": (2, 2),
    "gpipe": (1, 1),
    "interleaved_1f1b": (2, None),
    "interleaved_zero_bubble": (2, None),
    "looped_bfs": (2, None),
    "zbv": (2, 2),
}


def check(draft: Draft) -> Iterator[Diagnostic]:
    parallelism, layout = draft.parallelism, draft.layout
    if not isinstance(parallelism, Pipeline) or layout is None:
        return
    ranks = num_pipeline_ranks(parallelism, layout)
    if ranks is None or ranks == 1 or parallelism.stages % ranks:
        return
    held = parallelism.stages // ranks
    least, most = STAGES_PER_RANK[parallelism.schedule]
    if held >= least and (most is None or held <= most):
        return
    wanted = f"{least} or more" if most is None else f"exactly {least}"
    others = [name for name, (low, high) in STAGES_PER_RANK.items() if low <= held and (high is None or held <= high)]
    yield error(
        "P006",
        draft.span("parallelism.stages"),
        f"{parallelism.schedule} needs {wanted} {'stage' if wanted.endswith('1') else 'stages'} on each rank; "
        f"{parallelism.stages} stages on {ranks} ranks are {held}",
        f"set parallelism.stages to {ranks * least}, or parallelism.schedule to {', '.join(others)}",
        (Related(draft.span("parallelism.schedule"), parallelism.schedule),),
    )
