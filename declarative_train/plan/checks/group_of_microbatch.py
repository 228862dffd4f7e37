"""group-of-microbatch (R105)

Finds: a node that reads across the batch, over whatever one rank has at a time, in a layout with several such slices.
Why:   its result, and so every gradient, depends on the number of ranks, accumulation steps and microbatches; with a
       number of samples it is the same everywhere.
Bad:
    model:
      graph:
        norm: {type: batch_norm, input: pixels}
        hidden: {input: norm}
    parallelism: ddp
    layout: {gpus: 2}
    training: {global_batch_size: 16}
Good:
    model:
      graph:
        norm: {type: batch_norm, over: 8 samples, input: pixels}
        hidden: {input: norm}
    parallelism: ddp
    layout: {gpus: 2}
    training: {global_batch_size: 16}
"""

from __future__ import annotations

from collections.abc import Sequence

from declarative_train.data.spec import BatchSpec
from declarative_train.diagnostics.diagnostic import Diagnostic, warning
from declarative_train.terms.amounts import counted
from declarative_train.terms.span import Span


def group_of_microbatch(span: Span, names: Sequence[str], batch: BatchSpec) -> Diagnostic:
    """Said once, at the first of them."""
    others = f" (and {len(names) - 1} more, such as `{names[1]}`)" if len(names) > 1 else ""
    return warning(
        "R105",
        span,
        f"`{names[0]}`{others} looks at what one rank has at a time, {counted(batch.microbatch_size, 'sample')}: on "
        "another layout the gradients differ",
        f"`over: {batch.microbatch_size} samples` gives the same here, and on every layout",
    )
