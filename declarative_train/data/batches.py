"""Batches: which rows of an epoch's order one rank takes, and their tensors.

What a step holds is a function of the step's number alone: a resumed run computes where it stands, and neither the
number of ranks nor that of loaders changes which samples travel together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from declarative_train.data.batch import Batch, moved, packed, tensors_moved, unpacked
from declarative_train.data.order import sample_index
from declarative_train.data.slots import Slot, evaluation_slots, locate, slots
from declarative_train.data.spec import BatchSpec, DataSpec
from declarative_train.data.splitting import TRAINING

if TYPE_CHECKING:
    import torch

    from declarative_train.data.sets import SampleSet

__all__ = ["Batch", "EvaluationBatches", "TrainingBatches", "make_batches"]

_BLOCK_BYTES = 4 << 20  # steps gathered at once from a held set: what stays in a cache of the processor
_BLOCK_POSITIONS = 1 << 16


class TrainingBatches:
    """The training set as optimizer steps, for one data-parallel rank.

    `device`: where the tensors are wanted; None leaves them in this machine's memory. `hold_on_device` keeps a held set
    there, else what is gathered is copied, by pinned memory.
    """

    def __init__(
        self,
        spec: DataSpec,
        batch: BatchSpec,
        dp_rank: int,
        sets: Mapping[str, SampleSet],
        *,
        device: torch.device | None = None,
        hold_on_device: bool = False,
    ) -> None:
        self._spec = spec
        self._batch = batch
        self._rank = dp_rank
        self._set = sets[TRAINING]
        self._device = None if device is None or device.type == "cpu" else device
        if self._device is not None and hold_on_device and self._set.is_held and not spec.workers:
            self._set = self._set.to(self._device)

    def samples(self, epoch: int, positions: np.ndarray) -> np.ndarray:
        """Which samples stand at these positions of an epoch's order."""
        if not self._spec.shuffle:
            return positions
        return sample_index(self._spec.seed, epoch, positions, self._set.num_samples)

    def step(self, step: int) -> list[Batch]:
        """The batches of optimizer step `step` (1-based), one per chunk. Raises DataError."""
        return [moved(batch, self._device) for batch in self._on_host(step)]

    def iterate(self, first_step: int, num_steps: int) -> Iterator[list[Batch]]:
        """The steps `first_step`, `first_step + 1`, ... in turn, made ahead where that takes time: by loader processes
        if the recipe asks for workers, by a thread if the set is not held, else a few steps at once. Raises DataError.
        Close the iterator to end it early."""
        from declarative_train.data.prefetch import ahead, by_workers

        if self._spec.workers:
            return self._by_workers(by_workers(self._packed, first_step, num_steps, self._spec.workers))
        if not self._set.is_held:
            return ahead(self.step, first_step, num_steps)
        return self._by_block(first_step, num_steps)

    def _on_host(self, step: int) -> list[Batch]:
        """For loader processes, which leave the device alone."""
        found = locate(step, self._batch, self._set.num_samples)
        parts = slots(found, self._batch, self._rank)
        return make_batches(self._set, parts, lambda positions: self.samples(found.epoch, positions), found.epoch)

    def _packed(self, step: int) -> list[Batch]:
        return [packed(batch) for batch in self._on_host(step)]

    def _by_workers(self, made: Iterator[list[Batch]]) -> Iterator[list[Batch]]:
        for batches in made:
            yield [moved(unpacked(batch), self._device) for batch in batches]

    def _by_block(self, first_step: int, num_steps: int) -> Iterator[list[Batch]]:
        batch, step, last = self._batch, first_step, first_step + num_steps - 1
        size = batch.global_batch_size
        share = size // batch.data_parallel_size
        most = max(1, min(_BLOCK_BYTES // max(1, share * self._set.sample_bytes), _BLOCK_POSITIONS // size))
        while step <= last:
            runs = self._full_steps(step, min(most, last - step + 1))
            if not runs:
                yield self.step(step)  # the last, partial batch of the epoch
                step += 1
                continue
            yield from self._block(runs)
            step += sum(run.count for run in runs)

    def _full_steps(self, step: int, most: int) -> list[_Run]:
        """Up to `most` steps from `step` on, all of full batches; short epochs follow each other."""
        batch = self._batch
        num_full = self._set.num_samples // batch.global_batch_size
        runs: list[_Run] = []
        while most:
            epoch, number = divmod(step - 1, batch.steps_per_epoch)
            count = min(most, num_full - number)
            if count < 1:
                break
            runs.append(_Run(epoch, number * batch.global_batch_size, count))
            step, most = step + count, most - count
        return runs

    def _block(self, runs: Sequence[_Run]) -> Iterator[list[Batch]]:
        """Full steps by one gather: positions in the order (step, chunk, row)."""
        import torch

        batch, size = self._batch, self._batch.microbatch_size
        num_chunks = batch.accumulation * batch.num_microbatches
        samples = np.concatenate([self._samples_of(run) for run in runs])
        tensors = tensors_moved(self._set.gather(samples), self._device)
        names = list(tensors)
        pieces = zip(*(torch.split(tensor, size) for tensor in tensors.values()), strict=True)
        ids = samples.reshape(-1, size)
        epochs = [run.epoch for run in runs for _ in range(run.count)]
        for number, epoch in enumerate(epochs):
            yield [
                Batch(dict(zip(names, next(pieces), strict=True)), size, None, each, epoch)
                for each in ids[number * num_chunks : (number + 1) * num_chunks]
            ]

    def _samples_of(self, run: _Run) -> np.ndarray:
        batch = self._batch
        positions = np.arange(run.start, run.start + run.count * batch.global_batch_size)
        mine = positions.reshape(-1, batch.data_parallel_size, batch.microbatch_size)[:, self._rank]
        return self.samples(run.epoch, mine.ravel())


@dataclass(frozen=True, slots=True)
class _Run:
    """`count` full steps of an epoch, from position `start` on."""

    epoch: int
    start: int
    count: int


class EvaluationBatches:
    """A set once through, in the order of the file, for one data-parallel rank.

    Every rank gets equally many batches; what is short is padded with weight 0. `max_samples`: that many samples,
    spread evenly over the set, when it has more.
    """

    def __init__(
        self,
        spec: DataSpec,
        name: str,
        sets: Mapping[str, SampleSet],
        *,
        batch_size: int,
        num_ranks: int = 1,
        dp_rank: int = 0,
        max_samples: int | None = None,
        pad_to_full: bool = False,
        device: torch.device | None = None,
    ) -> None:
        self._workers = spec.workers
        self._set = sets[name]
        self._device = None if device is None or device.type == "cpu" else device
        total = self._set.num_samples
        self.num_samples = total if max_samples is None else min(max_samples, total)
        self._total = total
        self._slots = evaluation_slots(self.num_samples, batch_size, num_ranks, dp_rank, pad_to_full)

    def __len__(self) -> int:
        return len(self._slots)

    def batch(self, number: int) -> Batch:
        """Batch `number`, from 0. Raises DataError."""
        return moved(self._on_host(number), self._device)

    def iterate(self) -> Iterator[Batch]:
        """All of them; not held ones are read ahead. Raises DataError. Close the iterator to end it early."""
        from declarative_train.data.prefetch import ahead, by_workers

        if self._set.is_held:
            return (self.batch(number) for number in range(len(self)))
        if self._workers:
            made = by_workers(self._packed, 0, len(self), self._workers)
            return (moved(unpacked(batch), self._device) for batch in made)
        return ahead(self.batch, 0, len(self))

    def _on_host(self, number: int) -> Batch:
        return make_batches(self._set, [self._slots[number]], self._samples)[0]

    def _packed(self, number: int) -> Batch:
        return packed(self._on_host(number))

    def _samples(self, positions: np.ndarray) -> np.ndarray:
        return spread(positions, self.num_samples, self._total)


def spread(positions: np.ndarray, num_samples: int, total: int) -> np.ndarray:
    """Which samples of a set of `total` stand at these positions of an evaluation of `num_samples` of them."""
    return positions if num_samples == total else positions * total // num_samples


def make_batches(
    samples: SampleSet, parts: Sequence[Slot], order: Callable[[np.ndarray], np.ndarray], epoch: int | None = None
) -> list[Batch]:
    """The batches of some slots by one gather. `order` turns positions into samples; `epoch`: of training."""
    import torch

    positions = [_positions(slot) for slot in parts]
    ids = order(np.concatenate(positions))
    tensors = samples.gather(ids, epoch)
    sizes = [len(each) for each in positions]
    pieces = [torch.split(tensor, sizes) for tensor in tensors.values()]
    batches = []
    start = 0
    for number, slot in enumerate(parts):
        row_weight = None
        if slot.num_padding:
            row_weight = torch.zeros(sizes[number])
            row_weight[: slot.num_rows] = 1
        values = {name: piece[number] for name, piece in zip(tensors, pieces, strict=True)}
        batches.append(Batch(values, slot.num_rows, row_weight, ids[start : start + slot.num_rows], epoch))
        start += sizes[number]
    return batches


def _positions(slot: Slot) -> np.ndarray:
    return np.concatenate(
        [np.arange(slot.start, slot.start + slot.num_rows), np.full(slot.num_padding, slot.filler, np.int64)]
    )
