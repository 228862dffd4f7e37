"""group-of-one (R120)

Finds: a batch_norm over single values whose last group of an epoch is one sample.
Why:   one value has no variance. It is normalised to 0, so that the sample teaches the layers below nothing, and is
       left out of the running statistics; torch stops there.
Bad:
    data: {split: {validation: 0.1}}
    model:
      graph:
        norm: {type: batch_norm, over: 16 samples, input: pixels}
        hidden: {input: norm}
    training: {global_batch_size: 32}
Good:
    data: {split: {validation: 0.1}, last_batch: drop}
    model:
      graph:
        norm: {type: batch_norm, over: 16 samples, input: pixels}
        hidden: {input: norm}
    training: {global_batch_size: 32}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, warning
from declarative_train.terms.span import Span


def group_of_one(span: Span, name: str, num_rows: int, batch_size: int) -> Diagnostic:
    """`num_rows` of the training set, in global batches of `batch_size`."""
    return warning(
        "R120",
        span,
        f"`{name}`: of {num_rows} training rows in batches of {batch_size}, the last group of an epoch is 1 sample, "
        "which has no variance",
        "set data.last_batch to drop, or take another training.global_batch_size",
    )
