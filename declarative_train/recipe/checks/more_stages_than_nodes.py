"""more-stages-than-nodes (P017)

Finds: more pipeline stages than the model has nodes.
Why:   a stage holds at least one node; a node is never split.
Bad:
    parallelism: {mode: pipeline, stages: 64, microbatches: 64}
    layout: {gpus: 64}
    training: {global_batch_size: 64}
Good:
    parallelism: {mode: pipeline, stages: 2, microbatches: 2}
    layout: {gpus: 2}
    training: {global_batch_size: 8}
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.recipe.draft import Draft
from declarative_train.recipe.model.tree import num_nodes
from declarative_train.terms.amounts import counted


def check(draft: Draft) -> Iterator[Diagnostic]:
    if (pipeline := draft.pipeline) is None or draft.scope is None:
        return
    stages, nodes = pipeline.stages, num_nodes(draft.scope)
    if stages > nodes:
        message = f"{counted(stages, 'stage')}, and the model has {counted(nodes, 'node')} to share out"
        yield error("P017", draft.span("parallelism.stages"), message, f"at most {nodes}")
