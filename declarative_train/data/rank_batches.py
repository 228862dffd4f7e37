"""Batches of one data-parallel rank: the samples that it reads in each step, and their tensors.

The content of a step depends only on the number of the step. So a resumed run computes its position, and neither the
number of ranks nor the number of loader processes changes which samples are in a global batch. For example, if step 3
has the samples 7 2 9 4, then with 2 ranks and one chunk, rank 0 has the batch 7 2 and rank 1 the batch 9 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from declarative_train.data.batch import (
    Batch,
    Take,
    Taken,
    make_batches,
    mask_rows,
    move_batch,
    move_tensors,
    pack_batch,
)
from declarative_train.data.length_buckets import BucketCuts, BucketOrder, buckets_of
from declarative_train.data.mixture import MixtureOrder, make_mixture_order
from declarative_train.data.mixup import PairMixer
from declarative_train.data.order import evaluation_chunks, full_batch_positions, locate, rank_chunks, sample_index
from declarative_train.data.prefetch import ahead, by_workers, copy_ahead, from_host, from_workers, is_gpu
from declarative_train.data.shuffle import BlockShuffle, block_starts
from declarative_train.data.spec import BatchSpec, BlockShuffleSpec, DataError, DataSpec, may_lie_on_gpu
from declarative_train.data.split_rows import TRAINING

if TYPE_CHECKING:
    import torch

    from declarative_train.data.shuffle_reader import MixtureReader, WindowReader
    from declarative_train.data.tensor_sets import SampleSet

__all__ = ["Batch", "EvaluationBatches", "TrainingBatches", "make_batches"]

_GROUP_BYTES = 4 << 20  # size of the steps that are gathered at once from a set in memory: fits into a processor cache
_GROUP_POSITIONS = 1 << 16  # most positions of the epoch in these steps


@dataclass(frozen=True, slots=True)
class _StepRange:
    """Consecutive steps of one epoch, all with full batches. `start`: position in the epoch at which the batch of the
    first step begins. `count`: number of steps."""

    epoch: int
    start: int
    count: int


TakeSteps: TypeAlias = "Callable[[Sequence[_StepRange]], Taken]"
"""Function from steps to the sample numbers and the tensors of their rows, in the order (step, chunk, row)."""


class TrainingBatches:
    """Training set as batches for one data-parallel rank.

    `device`: device of the tensors; None leaves them in host memory. `hold_on_device`: copy the whole set to the device
    once. This is done only if the set is in memory, and fits on the device in addition to the `steps_bytes` that a step
    needs. Otherwise each batch is copied. `bytes_on_device`: memory of the set on the device, 0 if each batch is
    copied.
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
        steps_bytes: int = 0,
    ) -> None:
        self._spec = spec
        self._batch = batch
        self._dp_rank = dp_rank
        self._set = sets[TRAINING]
        self._device = None if device is None or device.type == "cpu" else device
        self._pairs = PairMixer.of(spec)
        self._order: BlockShuffle | MixtureOrder | None = None
        if spec.mix:
            self._order = make_mixture_order(spec, self._set.prepared, batch.global_batch_size)
        elif spec.roll is not None and spec.shuffle:
            blocks = block_starts(self._set.prepared)
            if blocks is None:
                raise DataError("the plan reads the training set in blocks, but the set no longer has blocks")
            self._order = BlockShuffle(spec.seed, blocks, spec.roll, batch.global_batch_size)
        self._file_order = None if spec.shuffle or spec.mix else file_order(spec, self._set, batch.global_batch_size)
        self._cuts, self._buckets = _cuts(spec, self._set), None
        if self._cuts is not None:
            self._buckets = BucketOrder(
                spec.seed,
                self._cuts.bucket_ids,
                batch.global_batch_size,
                self._index_without_buckets,
                shuffle=spec.shuffle,
            )
        stays = hold_on_device and self._set.is_held and not spec.workers
        self._is_on_device = self._device is not None and stays and has_room(self._set, self._device, steps_bytes)
        self.bytes_on_device = self._set.held_bytes if self._is_on_device else 0
        if self._device is not None and self._is_on_device:
            self._set = self._set.to(self._device)

    def sample_indices(self, epoch: int, positions: np.ndarray) -> np.ndarray:
        """Return the index in the training set of the sample at each of the `positions` of an epoch."""
        return self._index_without_buckets(epoch, self._position_without_buckets(epoch, positions))

    def _position_without_buckets(self, epoch: int, positions: np.ndarray) -> np.ndarray:
        """Return, for the sample at each of `positions` in an epoch, the position that it would have without length
        buckets."""
        return positions if self._buckets is None else self._buckets.positions(epoch, positions)

    def _index_without_buckets(self, epoch: int, positions: np.ndarray) -> np.ndarray:
        """Return, for each of these positions of an epoch, the index in the set of its sample, without the reordering
        by length buckets."""
        if isinstance(self._order, MixtureOrder):
            return self._order.sample_indices(self._order.draw(epoch, positions))
        if not self._spec.shuffle:
            return positions
        if self._order is not None:
            return self._order.sample_indices(epoch, positions)
        return sample_index(self._spec.seed, epoch, positions, self._set.num_samples)

    def step(self, step: int) -> list[Batch]:
        """Return this rank's batches of optimizer step `step` (from 1), one batch per chunk. Raises DataError."""
        return self._mix_pairs(self._make_step(step, self._gather))

    def _mix_pairs(self, batches: list[Batch]) -> list[Batch]:
        """Return the batches with pairs of samples mixed, if the recipe has such a transform (mixup, cutmix).

        A full batch has an even number of rows, so that both samples of each pair are in it.
        """
        return batches if self._pairs is None else [self._pairs.mix(batch) for batch in batches]

    def iterate(self, first_step: int, num_steps: int) -> Iterator[list[Batch]]:
        """Yield this rank's batches of each step, from step `first_step` on, for `num_steps` steps. Raises DataError.

        Loader processes prepare the steps ahead if the recipe sets `workers`. Otherwise threads read a set that is not
        in memory, and copy batches to a GPU, ahead of their use. Close the iterator to end it early.
        """
        made = self._iterate_batches(first_step, num_steps)
        return made if self._pairs is None else (self._mix_pairs(batches) for batches in made)

    def _iterate_batches(self, first_step: int, num_steps: int) -> Iterator[list[Batch]]:
        """Yield the batches of each step as in `iterate`, before pairs of samples are mixed. The way in which they are
        read depends on where the set is, on the order, on `workers` and on the device."""
        if self._order is not None and self._spec.is_block_shuffled and not self._set.is_held:
            return self._iterate_windows(self._order, first_step, num_steps)
        if self._file_order is not None:
            return self._iterate_windows(self._file_order, first_step, num_steps)
        if self._spec.workers:
            packed = by_workers(
                lambda step: list(map(pack_batch, self._on_host(step))), first_step, num_steps, self._spec.workers
            )
            return from_workers(packed, first_step, num_steps, self._device)
        if is_gpu(self._device) and not self._is_on_device:
            return copy_ahead(self._on_host, first_step, num_steps, self._device)
        if self._set.is_held and self._buckets is not None:
            return (self._make_step(step, self._gather) for step in range(first_step, first_step + num_steps))
        if self._set.is_held:
            return self._make_steps(first_step, num_steps, self._gather_steps, self._gather)
        return ahead(lambda step: self._make_step(step, self._gather), first_step, num_steps)

    def _gather(self, epoch: int | None, positions: np.ndarray) -> Taken:
        """Return (sample numbers, tensors) of the samples at `positions` of an epoch, without shuffle windows."""
        if isinstance(self._order, MixtureOrder):
            from declarative_train.data.shuffle_reader import gather_mixture

            return gather_mixture(
                self._set, self._order, epoch or 0, self._position_without_buckets(epoch or 0, positions)
            )
        ids = self.sample_indices(epoch or 0, positions)
        return ids, self._set.gather(ids, epoch)

    def _iterate_windows(
        self, order: BlockShuffle | MixtureOrder, first_step: int, num_steps: int
    ) -> Iterator[list[Batch]]:
        from declarative_train.data.shuffle_reader import WorkerSlice, read_with_workers

        rows = WorkerSlice(self._set.prepared, order, self._batch, self._dp_rank, first_step, num_steps)
        if self._spec.workers:
            yield from from_host(read_with_workers(rows, self._spec.workers), first_step, num_steps, self._device)
            return
        reader = rows.open_reader()
        try:
            if is_gpu(self._device):
                steps = range(first_step, first_step + num_steps)
                made = (self._make_on_host(step, reader.gather) for step in steps)
                yield from from_host(made, first_step, num_steps, self._device)
            elif self._set.prepared.lazy:
                yield from ahead(lambda step: self._make_step(step, reader.gather), first_step, num_steps)
            else:
                yield from self._make_steps(
                    first_step,
                    num_steps,
                    lambda ranges: _join([self._gather_windows(reader, each) for each in ranges]),
                    reader.gather,
                )
        finally:
            reader.close()

    def _gather_windows(self, reader: WindowReader | MixtureReader, steps: _StepRange) -> Taken:
        """Return the rows of this rank in `steps`, read from shuffle windows."""
        from declarative_train.data.shuffle_reader import WindowReader

        if isinstance(reader, WindowReader):
            return reader.gather_batches(steps.epoch, self._positions(replace(steps, count=1)), steps.count)
        return reader.gather(steps.epoch, self._positions(steps))

    def _make_step(self, step: int, take: Take) -> list[Batch]:
        return [move_batch(batch, self._device) for batch in self._make_on_host(step, take)]

    def _make_on_host(self, step: int, take: Take) -> list[Batch]:
        """Return this rank's batches of a step in host memory, made from the rows that `take` returns."""
        found = locate(step, self._batch, self._set.num_samples)
        batches = make_batches(rank_chunks(found, self._batch, self._dp_rank), take, found.epoch)
        if self._cuts is None or self._buckets is None:
            return batches
        bucket_id = self._buckets.bucket_id(found.epoch, found.start)
        return [replace(batch, tensors=self._cuts.cut(batch.tensors, bucket_id)) for batch in batches]

    def _on_host(self, step: int) -> list[Batch]:
        return self._make_on_host(step, self._gather)

    def _make_steps(self, first_step: int, num_steps: int, take_steps: TakeSteps, take: Take) -> Iterator[list[Batch]]:
        """Yield this rank's batches of each step. Full batches of several steps are made at once from the rows that
        `take_steps` returns; a last, partial batch of an epoch is made from those of `take`."""
        batch, step, last = self._batch, first_step, first_step + num_steps - 1
        size = batch.global_batch_size
        per_rank = size // batch.data_parallel_size
        most = max(1, min(_GROUP_BYTES // max(1, per_rank * self._set.sample_bytes), _GROUP_POSITIONS // size))
        while step <= last:
            ranges = self._full_steps(step, min(most, last - step + 1))
            if not ranges:
                yield self._make_step(step, take)
                step += 1
                continue
            yield from self._make_group(ranges, take_steps)
            step += sum(each.count for each in ranges)

    def _full_steps(self, step: int, most: int) -> list[_StepRange]:
        """Return at most `most` steps from `step` on, as one range per epoch. They end before the next step whose batch
        is not full, which is the last one of an epoch."""
        batch = self._batch
        num_full = self._set.num_samples // batch.global_batch_size
        ranges: list[_StepRange] = []
        while most:
            epoch, number = divmod(step - 1, batch.steps_per_epoch)
            count = min(most, num_full - number)
            if count < 1:
                break
            ranges.append(_StepRange(epoch, number * batch.global_batch_size, count))
            step, most = step + count, most - count
        return ranges

    def _make_group(self, ranges: Sequence[_StepRange], take: TakeSteps) -> Iterator[list[Batch]]:
        """Read the rows of all steps in `ranges` at once, and yield the batches of one step after the other."""
        batch, size = self._batch, self._batch.microbatch_size
        num_chunks = batch.accumulation * batch.num_microbatches
        samples, gathered = take(ranges)
        tensors = move_tensors(gathered, self._device)
        names = list(tensors)
        pieces = zip(*(tensor.view(-1, size, *tensor.shape[1:]).unbind() for tensor in tensors.values()), strict=True)
        ids = samples.reshape(-1, size)
        epochs = [each.epoch for each in ranges for _ in range(each.count)]
        for number, epoch in enumerate(epochs):
            yield [
                Batch(dict(zip(names, next(pieces), strict=True)), size, None, each, epoch)
                for each in ids[number * num_chunks : (number + 1) * num_chunks]
            ]

    def _gather_steps(self, ranges: Sequence[_StepRange]) -> Taken:
        if isinstance(self._order, MixtureOrder):
            return _join([self._gather(each.epoch, self._positions(each)) for each in ranges])
        samples = np.concatenate([self.sample_indices(each.epoch, self._positions(each)) for each in ranges])
        return samples, self._set.gather(samples)

    def _positions(self, steps: _StepRange) -> np.ndarray:
        return full_batch_positions(steps.start, steps.count, self._batch, self._dp_rank)


def _join(taken: Sequence[Taken]) -> Taken:
    """Concatenate results of `Take` functions: the sample numbers, and the tensors of each field."""
    import torch

    if len(taken) == 1:
        return taken[0]
    joined = {name: torch.cat([tensors[name] for _, tensors in taken]) for name in taken[0][1]}
    return np.concatenate([ids for ids, _ in taken]), joined


class EvaluationBatches:
    """Batches of an evaluation for one data-parallel rank, in the order of the rows of the set.

    Every rank gets the same number of batches. A batch without a sample has one row of padding, with weight 0.
    `max_samples`: evaluate only that many samples, spread evenly over the set. `pad_to_full`: each batch is padded to
    `batch_size` rows. `cuts`: shorten each batch to the length bucket of its longest sample, if fields have buckets.
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
        cuts: bool = False,
    ) -> None:
        self._workers = spec.workers
        self._set = sets[name]
        self._order = file_order(spec, self._set, batch_size * num_ranks)
        self._cuts = _cuts(spec, self._set) if cuts else None
        self._batch_size = batch_size
        self._device = None if device is None or device.type == "cpu" else device
        total = self._set.num_samples
        self.num_samples = total if max_samples is None else min(max_samples, total)
        self._total = total
        self._chunks = evaluation_chunks(self.num_samples, batch_size, num_ranks, dp_rank, pad_to_full)

    def __len__(self) -> int:
        return len(self._chunks)

    def batch(self, number: int) -> Batch:
        """Return this rank's batch with the index `number`. Raises DataError."""
        return move_batch(self._on_host(number), self._device)

    def iterate(self) -> Iterator[Batch]:
        """Yield all batches of this rank. A set that is not in memory is read ahead. Close the iterator to end it
        early. Raises DataError."""
        if self._set.may_keep:
            return self._iterate_kept()
        if self._workers and not self._set.is_held:
            made = by_workers(lambda number: [pack_batch(self._on_host(number))], 0, len(self), self._workers)
            return (batch for (batch,) in from_workers(made, 0, len(self), self._device))
        if self._reads_windows:
            made = from_host(([batch] for batch in self._read_windows()), 0, len(self), self._device)
            return (batch for (batch,) in made)
        if is_gpu(self._device):  # also for sets in host memory
            copied = copy_ahead(lambda number: [self._on_host(number)], 0, len(self), self._device)
            return (batch for (batch,) in copied)
        if self._set.is_held:
            return (self.batch(number) for number in range(len(self)))
        return ahead(self.batch, 0, len(self))

    def _iterate_kept(self) -> Iterator[Batch]:
        """Yield this rank's batches of a set that is small enough to be kept in host memory. The first evaluation reads
        them from files and keeps them; later evaluations reuse them."""
        key = tuple(self._chunks), self.num_samples
        made = iter(self._set.kept[key]) if key in self._set.kept else self._read_and_keep(key)
        for (batch,) in from_host(([batch] for batch in made), 0, len(self), self._device):
            yield batch

    @property
    def _reads_windows(self) -> bool:
        """True if the set is read block after block, as shuffle windows of one block each that are not shuffled. This
        requires that all of the set is evaluated, and that no field is lazy (read from files, like images)."""
        return self._order is not None and self.num_samples == self._total and not self._set.prepared.lazy

    def _read_windows(self) -> Iterator[Batch]:
        from declarative_train.data.shuffle_reader import ReadRange, WindowReader

        assert self._order is not None
        prepared = self._set.prepared
        reader = WindowReader(prepared, self._order, ReadRange((0,), np.empty(0, np.int64), 0, 0, 0))
        try:
            most = max(1, _GROUP_BYTES // max(1, self._batch_size * self._set.sample_bytes))
            for start in range(0, len(self._chunks), most):
                at_once = self._chunks[start : start + most]
                yield from make_batches(at_once, lambda _, positions: reader.gather(0, positions))
        finally:
            reader.close()

    def _read_and_keep(self, key: object) -> Iterator[Batch]:
        batches = []
        made = self._read_windows() if self._reads_windows else ahead(self._on_host, 0, len(self))
        for batch in made:
            batches.append(batch)
            if len(batches) == len(self):
                self._set.kept = {key: batches}
            yield batch

    def _on_host(self, number: int) -> Batch:
        made = make_batches([self._chunks[number]], self._take)[0]
        if self._cuts is not None:
            bucket_id = int(self._cuts.bucket_ids[made.sample_ids].max(initial=0))
            made = replace(made, tensors=self._cuts.cut(made.tensors, bucket_id))
        skipped = self._set.prepared.is_skipped(made.sample_ids)
        return made if skipped is None else mask_rows(made, skipped)

    def _take(self, _: int | None, positions: np.ndarray) -> Taken:
        ids = spread(positions, self.num_samples, self._total)
        return ids, self._set.gather(ids)


def file_order(spec: DataSpec, samples: SampleSet, batch_size: int) -> BlockShuffle | None:
    """Return the order in which an unshuffled set is read ahead, block by block. Return None for a set that is not read
    in this way: it is in memory, it has no blocks or is not in the order of the files, or the recipe skips bad rows or
    sets `workers`."""
    prepared = samples.prepared
    if spec.workers or samples.is_held or prepared.skips is not None:
        return None
    blocks = block_starts(prepared)
    return None if blocks is None or len(blocks) < 2 else BlockShuffle(None, blocks, BlockShuffleSpec(1, 1), batch_size)


def _cuts(spec: DataSpec, samples: SampleSet) -> BucketCuts | None:
    bucket_ids = samples.prepared.bucket_ids
    return None if bucket_ids is None else BucketCuts(bucket_ids, buckets_of(spec))


def has_room(samples: SampleSet, device: torch.device, steps_bytes: int = 0) -> bool:
    """Return whether all of a set that is in host memory may be copied to `device`, by the rule of `may_lie_on_gpu`.
    Return True if the device is not a GPU. `steps_bytes`: memory that a step needs."""
    import torch

    if not is_gpu(device):
        return True
    return may_lie_on_gpu(samples.held_bytes, torch.cuda.mem_get_info(device)[0], steps_bytes)


def spread(positions: np.ndarray, num_samples: int, total: int) -> np.ndarray:
    """Return, for each of these positions of an evaluation, the index in the set of its sample. The evaluation uses
    `num_samples` samples, which are evenly distributed over the `total` samples of the set."""
    return positions if num_samples == total else positions * total // num_samples
