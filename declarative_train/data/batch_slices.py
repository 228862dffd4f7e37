"""Slices of batches: the positions of an epoch's order that a rank takes in each chunk of a global batch."""

from __future__ import annotations

from dataclasses import dataclass

from declarative_train.data.spec import BatchSpec


@dataclass(frozen=True, slots=True)
class Slot:
    """Share of one rank in a chunk: `num_rows` positions from `start` on, then `num_padding` repeats of `filler`."""

    start: int
    num_rows: int
    num_padding: int
    filler: int


@dataclass(frozen=True, slots=True)
class StepSlice:
    """Position of an optimizer step: `epoch` counts from 0; its global batch is `size` positions from `start` on."""

    epoch: int
    start: int
    size: int


def locate(step: int, batch: BatchSpec, num_samples: int) -> StepSlice:
    """Return the position of a step; `step` counts from 1."""
    epoch, number = divmod(step - 1, batch.steps_per_epoch)
    start = number * batch.global_batch_size
    return StepSlice(epoch, start, min(batch.global_batch_size, num_samples - start))


def samples_until(step: int, batch: BatchSpec, num_samples: int) -> int:
    """Return the number of samples in the first `step` steps of a run."""
    epochs, inside = divmod(step, batch.steps_per_epoch)
    per_epoch = min(num_samples, batch.steps_per_epoch * batch.global_batch_size)
    return epochs * per_epoch + min(inside * batch.global_batch_size, per_epoch)


def slots(found: StepSlice, batch: BatchSpec, rank: int) -> list[Slot]:
    """Return one slot per chunk, in order: accumulation x microbatches, whatever the size of the last batch."""
    size = batch.microbatch_size
    chunk = batch.data_parallel_size * size
    return [
        _slot(found.start, found.size, number * chunk + rank * size, size, batch.pad_to_full)
        for number in range(batch.accumulation * batch.num_microbatches)
    ]


def _slot(start: int, size: int, offset: int, wanted: int, pad_to_full: bool) -> Slot:
    num_rows = min(max(size - offset, 0), wanted)
    num_padding = wanted - num_rows if pad_to_full else int(not num_rows)
    filler = start + offset + num_rows - 1 if num_rows else start
    return Slot(start + offset, num_rows, num_padding, filler)


def evaluation_slots(num_positions: int, batch_size: int, num_ranks: int, rank: int, pad_to_full: bool) -> list[Slot]:
    """Return the slots of a rank, the same number for each rank; each rank takes its slice of a batch of all ranks."""
    chunk = batch_size * num_ranks
    return [
        _slot(start, num_positions - start, rank * batch_size, batch_size, pad_to_full)
        for start in range(0, num_positions, chunk)
    ]
