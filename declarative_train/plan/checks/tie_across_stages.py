"""tie-across-stages (P105)

Finds: two tied parameters that lie in different pipeline stages.
Why:   each stage would hold a copy, and the copies' gradients would have to be added up between ranks; that this is
       exact has not been proven here yet, and what is not proven is refused.
Bad:
    model:
      graph:
        first: {type: linear, out_features: 64, input: pixels}
        second: {type: linear, out_features: 64, input: first}
        hidden: {input: second}
      parameters:
        second.weight: {tie: first.weight}
    parallelism: {mode: pipeline, stages: 2, microbatches: 2, cut_before: [second]}
    layout: {gpus: 2}
    training: {global_batch_size: 8}
Good:
    model:
      graph:
        first: {type: linear, out_features: 64, input: pixels}
        second: {type: linear, out_features: 64, input: first}
        hidden: {input: second}
      parameters:
        second.weight: {tie: first.weight}
    parallelism: {mode: pipeline, stages: 2, microbatches: 2, cut_before: [hidden]}
    layout: {gpus: 2}
    training: {global_batch_size: 8}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, Related, error
from declarative_train.terms.span import Span


def tie_across_stages(
    span: Span, name: str, stage: int, source: str, source_stage: int, cut: str, tie: Span
) -> Diagnostic:
    """`cut`: the node that opens the later of the two stages; `tie`: where the recipe, or a block of it, ties them."""
    return error(
        "P105",
        span,
        f"`{name}` in stage {stage} is tied to `{source}` in stage {source_stage}: the cut before `{cut}` parts them",
        "cut so that both are in one stage, take the tie away, or use fsdp",
        (Related(tie, "tied here"),),
    )
