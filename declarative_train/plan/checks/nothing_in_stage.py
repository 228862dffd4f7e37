"""nothing-in-stage (P103)

Finds: a pipeline stage without a parameter.
Why:   its rank would train nothing, and only pass on what it gets.
Bad:
    model:
      graph:
        last: {type: relu, input: logits}
    objective:
      loss: {type: cross_entropy, input: last, target: digit}
    parallelism: {mode: pipeline, stages: 2, microbatches: 2, cut_before: [last]}
    layout: {gpus: 2}
    training: {global_batch_size: 8}
Good:
    model:
      graph:
        last: {type: relu, input: logits}
    objective:
      loss: {type: cross_entropy, input: last, target: digit}
    parallelism: {mode: pipeline, stages: 2, microbatches: 2, cut_before: [logits]}
    layout: {gpus: 2}
    training: {global_batch_size: 8}
"""

from __future__ import annotations

from collections.abc import Sequence

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def nothing_in_stage(span: Span, stage: int, nodes: Sequence[str]) -> Diagnostic:
    held = ", ".join(nodes[:4]) + (", ..." if len(nodes) > 4 else "")
    return error("P103", span, f"stage {stage} ({held}) has no parameter", "cut elsewhere, or leave `cut_before` out")
