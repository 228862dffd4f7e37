"""ranks-of-one (S010)

Finds: `ddp`, `fsdp` or `dp` on one GPU.
Why:   there is no other rank to share the batch with: the run is that of `single`, with the cost of a process group.
       Often the number of GPUs was forgotten in `layout`.
Bad:
    parallelism: ddp
    layout: {gpus: 1}
Good:
    parallelism: ddp
    layout: {gpus: 2}
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.diagnostics.diagnostic import Diagnostic, warning
from declarative_train.recipe.draft import Draft
from declarative_train.recipe.sections.parallelism import Ddp, Dp, Fsdp


def check(draft: Draft) -> Iterator[Diagnostic]:
    parallelism, layout = draft.parallelism, draft.layout
    if not isinstance(parallelism, Ddp | Dp | Fsdp) or layout is None or layout.num_gpus > 1:
        return
    if isinstance(parallelism, Fsdp) and parallelism.replicate > 1:
        return  # which is refused by its own rule
    said = "`layout` gives 1 GPU" if draft.is_written("layout") else "`layout` is left out: 1 GPU"
    yield warning(
        "S010",
        draft.span("parallelism.mode"),
        f"{parallelism.mode} shares a batch out over GPUs, and {said}",
        "set layout.gpus to 2 or more, or parallelism to single",
    )
