"""too-many-workers (P014)

Finds: more loader processes than this machine has cores.
Why:   every rank starts its own; past the number of cores they take time from each other and from training.
Bad:
    data: {workers: 4096}
    parallelism: ddp
    layout: {gpus: 2}
Good:
    data: {workers: 0}
    parallelism: ddp
    layout: {gpus: 2}
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.diagnostics.diagnostic import Diagnostic, Related, warning
from declarative_train.recipe.draft import Draft
from declarative_train.terms.amounts import counted
from declarative_train.terms.machine import num_cores


def check(draft: Draft) -> Iterator[Diagnostic]:
    """Of a run on one node: what the nodes of a cluster have is not known here."""
    data, parallelism, layout = draft.data, draft.parallelism, draft.layout
    if data is None or parallelism is None or layout is None or layout.num_nodes > 1:
        return
    ranks = 1 if parallelism.in_one_process else layout.num_gpus
    cores = num_cores()
    if data.workers * ranks > cores:
        workers, processes = counted(data.workers, "loader worker"), counted(data.workers * ranks, "process")
        each = f"{counted(ranks, 'rank')} with {workers} each" if ranks > 1 else workers
        yield warning(
            "P014",
            draft.span("data.workers"),
            f"{each}: {processes}, and this machine has {counted(cores, 'core')}",
            f"set data.workers to {cores // ranks}",
            (Related(draft.span("layout"), counted(ranks, "rank")),) if ranks > 1 else (),
        )
