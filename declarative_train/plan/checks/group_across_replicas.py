"""group-across-replicas (R107)

Finds: a node in `dp` that looks at more samples at a time than one replica has.
Why:   the replicas of `dp` share one process and cannot talk to each other in the middle of a forward, as ranks do.
Bad:
    model:
      graph:
        norm: {type: batch_norm, over: 16 samples, input: pixels}
        hidden: {input: norm}
    parallelism: dp
    layout: {gpus: 2}
    training: {global_batch_size: 16}
Good:
    model:
      graph:
        norm: {type: batch_norm, over: 8 samples, input: pixels}
        hidden: {input: norm}
    parallelism: dp
    layout: {gpus: 2}
    training: {global_batch_size: 16}
"""

from __future__ import annotations

from declarative_train.data.spec import BatchSpec
from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def group_across_replicas(span: Span, name: str, size: int, batch: BatchSpec) -> Diagnostic:
    return error(
        "R107",
        span,
        f"`{name}` looks at {size} samples at a time, and each of the {batch.data_parallel_size} replicas of dp has "
        f"{batch.microbatch_size}",
        f"set `over` to {batch.microbatch_size} samples, or parallelism to ddp",
    )
