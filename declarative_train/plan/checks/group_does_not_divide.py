"""group-does-not-divide (R104)

Finds: `over: N samples` where groups of N cannot be made of the rows that travel together.
Why:   N divides the rows of one rank's microbatch (several groups in a forward), or is a multiple of them that divides
       ranks x microbatch (a group over several ranks); else a group would be torn apart.
Bad:
    model:
      graph:
        norm: {type: batch_norm, over: 7 samples, input: pixels}
        hidden: {input: norm}
    parallelism: single
    layout: {gpus: 1}
    training: {global_batch_size: 16}
Good:
    model:
      graph:
        norm: {type: batch_norm, over: 8 samples, input: pixels}
        hidden: {input: norm}
    parallelism: single
    layout: {gpus: 1}
    training: {global_batch_size: 16}
"""

from __future__ import annotations

from collections.abc import Sequence

from declarative_train.data.spec import BatchSpec
from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def group_does_not_divide(span: Span, name: str, size: int, near: Sequence[int], batch: BatchSpec) -> Diagnostic:
    ranks = f" on each of {batch.data_parallel_size} ranks" if batch.data_parallel_size > 1 else ""
    return error(
        "R104",
        span,
        f"`{name}` looks at {size} samples at a time, and {batch.microbatch_size} go through together{ranks}",
        f"set `over` to {' or '.join(f'{n} samples' for n in near)}",
    )
