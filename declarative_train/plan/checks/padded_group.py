"""padded-group (R106)

Finds: a pipeline whose last, partial batch is padded, with a node that reads across the batch.
Why:   a pipeline passes microbatches of one size only; the padding would be part of the statistics.
Bad:
    data: {last_batch: keep}
    model:
      graph:
        norm: {type: batch_norm, over: 3 samples, input: pixels}
        hidden: {input: norm}
    parallelism: {mode: pipeline, stages: 2, microbatches: 2}
    layout: {gpus: 2}
    training: {global_batch_size: 12}
Good:
    data: {last_batch: drop}
    model:
      graph:
        norm: {type: batch_norm, over: 3 samples, input: pixels}
        hidden: {input: norm}
    parallelism: {mode: pipeline, stages: 2, microbatches: 2}
    layout: {gpus: 2}
    training: {global_batch_size: 12}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def padded_group(span: Span, name: str) -> Diagnostic:
    return error(
        "R106",
        span,
        f"`{name}` reads across the batch, and a pipeline pads the last batch of an epoch",
        "set data.last_batch to drop",
    )
