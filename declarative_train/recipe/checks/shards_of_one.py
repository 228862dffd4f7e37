"""shards-of-one (P012)

Finds: hybrid sharding with as many replicas as GPUs.
Why:   each model is then sharded over one rank, which saves no memory: that is ddp.
Bad:
    parallelism: {mode: fsdp, replicate: 2}
    layout: {gpus: 2}
Good:
    parallelism: {mode: fsdp, replicate: 2}
    layout: {gpus: 4}
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.diagnostics.diagnostic import Diagnostic, Related, warning
from declarative_train.recipe.draft import Draft
from declarative_train.recipe.sections.parallelism import Fsdp
from declarative_train.terms.amounts import counted


def check(draft: Draft) -> Iterator[Diagnostic]:
    parallelism, layout = draft.parallelism, draft.layout
    if isinstance(parallelism, Fsdp) and layout and 1 < parallelism.replicate == layout.num_gpus:
        gpus = counted(layout.num_gpus, "GPU")
        yield warning(
            "P012",
            draft.span("parallelism.replicate"),
            f"with {counted(parallelism.replicate, 'replica')} on {gpus} nothing is left to shard over",
            "set parallelism to ddp, or replicate to a smaller number",
            (Related(draft.span("layout"), gpus),),
        )
