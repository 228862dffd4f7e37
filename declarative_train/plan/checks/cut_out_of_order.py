"""cut-out-of-order (P102)

Finds: names in `cut_before` that are not in the order of the graph, or that open a stage without a node.
Why:   stage after stage, the model is gone through from the fields to the loss.
Bad:
    parallelism: {mode: pipeline, stages: 3, microbatches: 4, cut_before: [logits, hidden]}
    layout: {gpus: 3}
    training: {global_batch_size: 8}
Good:
    parallelism: {mode: pipeline, stages: 2, microbatches: 4, cut_before: [logits]}
    layout: {gpus: 2}
    training: {global_batch_size: 8}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def cut_out_of_order(span: Span, name: str, before: str) -> Diagnostic:
    """`before`: the first node of the stage that is already open."""
    return error(
        "P102",
        span,
        f"`{name}` comes before `{before}` in the graph, where a stage opens already"
        if name != before
        else f"the first stage opens with `{name}` anyway",
        "name the nodes in the order of the graph, and not its first one",
    )
