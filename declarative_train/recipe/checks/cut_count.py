"""cut-count (P008)

Finds: `cut_before` with another number of names than there are stages to open, or a name twice.
Why:   each name opens a new stage; the first stage needs none.
Bad:
    parallelism: {mode: pipeline, stages: 2, microbatches: 2, cut_before: [act, logits]}
    layout: {gpus: 2}
Good:
    parallelism: {mode: pipeline, stages: 2, microbatches: 2, cut_before: [logits]}
    layout: {gpus: 2}
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.diagnostics.diagnostic import Diagnostic, Related, error
from declarative_train.recipe.draft import Draft
from declarative_train.terms.amounts import counted


def check(draft: Draft) -> Iterator[Diagnostic]:
    parallelism = draft.pipeline
    if parallelism is None or parallelism.cut_before == "auto":
        return
    cuts = parallelism.cut_before
    for position, name in enumerate(cuts):
        if name in cuts[:position]:
            yield error("P008", draft.span(("parallelism", "cut_before", position)), f"`{name}` opens a stage already")
    wanted = parallelism.stages - 1
    if len(cuts) != wanted:
        yield error(
            "P008",
            draft.span("parallelism.cut_before"),
            f"{counted(len(cuts), 'cut')} for {counted(len(cuts) + 1, 'stage')}, not {parallelism.stages}",
            f"name {counted(wanted, 'node')}, set parallelism.stages to {len(cuts) + 1}, or leave cut_before out",
            (Related(draft.span("parallelism.stages"), counted(parallelism.stages, "stage")),),
        )
