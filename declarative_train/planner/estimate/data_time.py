"""Time to make the batches of a step: to gather rows from memory, and to read and decode pictures. Batches are made
while the previous step computes, so a step waits for its batches only if they take longer than the rest of the step."""

from __future__ import annotations

from math import prod

from declarative_train.components.fields import FIELDS
from declarative_train.data.spec import BatchSpec, DataSpec
from declarative_train.planner.estimate.constants import Constants

MOST_BYTES = 4  # of a value, before a cast


def data_s(data: DataSpec, batch: BatchSpec, constants: Constants) -> float:
    """Return the estimated seconds in which one rank makes the samples of a step. They are made in `data.workers`
    loader processes or, if that is 0, in one thread."""
    gathered_s = decoded_s = 0.0
    for field in data.fields:
        size = prod(field.tensor.shape)
        if FIELDS.read(field.component).is_lazy:
            decoded_s += size / constants.decode_per_s
        else:
            gathered_s += size * MOST_BYTES / constants.assemble_per_s
    rows = batch.accumulation * batch.microbatch_size * batch.num_microbatches
    return rows * (gathered_s + decoded_s) / max(1, data.workers)
