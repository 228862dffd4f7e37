"""pipeline-of-one (P009)

Finds: a pipeline whose stages all lie on one rank.
Why:   there is no other rank to pass anything to; it would only cost time.
Bad:
    parallelism: {mode: pipeline, stages: 2, microbatches: 2}
    layout: {gpus: 1}
Good:
    parallelism: {mode: pipeline, stages: 2, microbatches: 2}
    layout: {gpus: 2}
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.diagnostics.diagnostic import Diagnostic, Related, error
from declarative_train.recipe.batch import data_parallel_size, num_pipeline_ranks
from declarative_train.recipe.draft import Draft
from declarative_train.terms.amounts import counted


def check(draft: Draft) -> Iterator[Diagnostic]:
    parallelism, layout = draft.pipeline, draft.layout
    if parallelism is None or layout is None or num_pipeline_ranks(parallelism, layout) != 1:
        return
    pipelines = data_parallel_size(parallelism, layout)
    gpus = counted(layout.num_gpus, "GPU")
    yield error(
        "P009",
        draft.span("parallelism.stages"),
        f"{gpus} {'is' if layout.num_gpus == 1 else 'are'} {counted(pipelines, 'pipeline')} of one rank each",
        f"set layout.gpus to {pipelines * parallelism.stages}, or parallelism to "
        + ("single" if layout.num_gpus == 1 else "ddp"),
        (Related(draft.span("layout"), gpus),),
    )
