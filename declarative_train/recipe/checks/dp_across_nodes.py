"""dp-across-nodes (P002)

Finds: `dp`, which is one process, on several nodes.
Why:   one process holds the GPUs of one machine only.
Bad:
    parallelism: dp
    layout: {nodes: 2, gpus_per_node: 2}
Good:
    parallelism: ddp
    layout: {nodes: 2, gpus_per_node: 2}
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.diagnostics.diagnostic import Diagnostic, Related, error
from declarative_train.recipe.draft import Draft


def check(draft: Draft) -> Iterator[Diagnostic]:
    if draft.parallelism is None or draft.layout is None:
        return
    if draft.parallelism.scatters and draft.layout.num_nodes > 1:
        yield error(
            "P002",
            draft.span("layout.nodes"),
            f"dp is one process and cannot run on {draft.layout.num_nodes} nodes",
            "set parallelism to ddp",
            (Related(draft.span("parallelism.mode"), "dp is asked for here"),),
        )
