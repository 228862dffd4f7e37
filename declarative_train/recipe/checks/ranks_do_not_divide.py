"""ranks-do-not-divide (P001)

Finds: GPUs that do not divide over pipelines, replicas or stages.
Why:   every rank of a group does the same share of the work; a rest would stand idle or wait for ever.
Bad:
    parallelism: {mode: fsdp, replicate: 3}
    layout: {gpus: 4}
Good:
    parallelism: {mode: fsdp, replicate: 2}
    layout: {gpus: 4}
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.diagnostics.diagnostic import Diagnostic, Related, error
from declarative_train.recipe.batch import data_parallel_size, num_pipeline_ranks
from declarative_train.recipe.draft import Draft
from declarative_train.recipe.sections.layout import Layout
from declarative_train.recipe.sections.parallelism import Fsdp, Pipeline
from declarative_train.terms.amounts import counted
from declarative_train.terms.span import Span


def check(draft: Draft) -> Iterator[Diagnostic]:
    parallelism, layout = draft.parallelism, draft.layout
    if layout is None:
        return
    if isinstance(parallelism, Fsdp) and parallelism.mesh(layout.num_gpus) is None:
        yield _uneven(draft, layout, "parallelism.replicate", parallelism.replicate, "groups that hold a model each")
    if isinstance(parallelism, Pipeline):
        ranks = num_pipeline_ranks(parallelism, layout)
        if ranks is None:
            size = data_parallel_size(parallelism, layout)
            yield _uneven(draft, layout, "parallelism.data_parallel.size", size, "pipelines")
        elif parallelism.stages % ranks:
            below = parallelism.stages // ranks * ranks
            values = " or ".join(str(value) for value in (below, below + ranks) if value)
            yield error(
                "P001",
                draft.span("parallelism.stages"),
                f"{counted(parallelism.stages, 'stage')} cannot be shared out evenly over the {ranks} ranks of a "
                "pipeline",
                f"set parallelism.stages to {values}",
                (Related(_gpus(draft), counted(layout.num_gpus, "GPU")),),
            )


def _uneven(draft: Draft, layout: Layout, path: str, number: int, what: str) -> Diagnostic:
    fits = [str(each) for each in range(1, layout.num_gpus + 1) if layout.num_gpus % each == 0]
    return error(
        "P001",
        draft.span(path),
        f"{counted(layout.num_gpus, 'GPU')} cannot be shared out evenly over {number} {what}",
        f"set {path} to one of {', '.join(fits)}",
        (Related(_gpus(draft), counted(layout.num_gpus, "GPU")),),
    )


def _gpus(draft: Draft) -> Span:
    return draft.span("layout.gpus" if draft.is_written("layout.gpus") else "layout.gpus_per_node")
