"""reuse-with-split-backward (P107)

Finds: a node that is called twice, under a pipeline schedule that splits each backward in two (interleaved_zero_bubble,
       zbv, dualpipev).
Why:   torch fails there with "backward through the graph a second time".
Bad:
    model:
      graph:
        first: {type: linear, out_features: 64, input: pixels}
        again: {type: reuse, node: first, input: first}
        second: {type: linear, out_features: 64, input: again}
        hidden: {input: second}
    parallelism:
      {mode: pipeline, stages: 4, schedule: zbv, microbatches: 4, cut_before: [second, hidden, logits]}
    layout: {gpus: 2}
    training: {global_batch_size: 8}
Good:
    model:
      graph:
        first: {type: linear, out_features: 64, input: pixels}
        again: {type: reuse, node: first, input: first}
        second: {type: linear, out_features: 64, input: again}
        hidden: {input: second}
    parallelism:
      {mode: pipeline, stages: 4, schedule: interleaved_1f1b, microbatches: 4, cut_before: [second, hidden, logits]}
    layout: {gpus: 2}
    training: {global_batch_size: 8}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def reuse_with_split_backward(span: Span, schedule: str, name: str) -> Diagnostic:
    return error(
        "P107",
        span,
        f"`{name}` calls a node a second time, and {schedule} splits each backward in two",
        "use interleaved_1f1b or looped_bfs (with one stage per rank: 1f1b or gpipe)",
    )
