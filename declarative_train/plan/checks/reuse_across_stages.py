"""reuse-across-stages (P106)

Finds: a node that is called again in another pipeline stage than its own.
Why:   its parameters would have to be held, and their gradients added up, in both stages; that this is exact has not
       been proven here yet, and what is not proven is refused.
Bad:
    model:
      graph:
        first: {type: linear, out_features: 64, input: pixels}
        again: {type: reuse, node: first, input: first}
        hidden: {input: again}
    parallelism: {mode: pipeline, stages: 2, microbatches: 2, cut_before: [again]}
    layout: {gpus: 2}
    training: {global_batch_size: 8}
Good:
    model:
      graph:
        first: {type: linear, out_features: 64, input: pixels}
        again: {type: reuse, node: first, input: first}
        hidden: {input: again}
    parallelism: {mode: pipeline, stages: 2, microbatches: 2, cut_before: [hidden]}
    layout: {gpus: 2}
    training: {global_batch_size: 8}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def reuse_across_stages(span: Span, name: str, stage: int, target: str, target_stage: int, cut: str) -> Diagnostic:
    """`cut`: the node that opens the later of the two stages."""
    return error(
        "P106",
        span,
        f"`{name}` in stage {stage} calls `{target}` of stage {target_stage} again: the cut before `{cut}` parts them",
        "cut so that both are in one stage, or use fsdp",
    )
