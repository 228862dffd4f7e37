"""Reader of a block-shuffled set, for one rank or one loader process. Threads read shuffle windows ahead, and batches
are gathered from the windows in memory (data/shuffle.py explains streams, windows and offsets).

Threads stop reading ahead when the windows in memory have a certain number of samples, so that memory does not grow
during a run. A window is dropped when its stream reaches the next window. For example, a rank that reads 4 streams uses
4 windows at a time, and one more is read ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Any, NamedTuple

import numpy as np
import torch

from declarative_train.data.batch import Batch, Taken, make_batches, pack_batch, positions_of, unpack_batch
from declarative_train.data.mixture import MixtureOrder
from declarative_train.data.order import locate, rank_chunks
from declarative_train.data.prefetch import Prefetcher, by_workers
from declarative_train.data.prepared_set import PreparedSet, storage_dtype
from declarative_train.data.shuffle import BlockShuffle, EpochBlocks
from declarative_train.data.shuffle_windows import LoadedWindow, RowBuffer, Segments, WindowId, gather_rows
from declarative_train.data.spec import BatchSpec
from declarative_train.data.tensor_sets import ReadSet, SampleSet, as_data_error, dtype_of

_AHEAD = 0.25  # samples that threads may read ahead, as a fraction of the samples in use
_SPARE = 2  # additional windows for which the buffer has room
_THREADS = 4
_LOOKED_AT = 1 << 18  # positions that are examined to find the streams that a rank reads


@dataclass(frozen=True, slots=True, eq=False)
class ReadRange:
    """Samples that a rank reads, from position `position` of epoch `epoch` to the end of epoch `last_epoch`. In a
    mixture, these are epochs of one source.

    `streams`: indices of the streams (data/shuffle.py) that the rank reads in full batches. `tail`: the rank's
    positions in the last batch of an epoch if that batch is not full, else empty.
    """

    streams: tuple[int, ...]
    tail: np.ndarray
    epoch: int
    position: int
    last_epoch: int

    def includes(self, order: BlockShuffle, name: WindowId) -> bool:
        """Return whether the rank reads the window `name`, given by its epoch and its index in the epoch."""
        blocks = order.epoch_blocks(name[0])
        return blocks.window(name[1]).stream in self.streams or name[1] in self._tail_windows(order, blocks)

    def windows(self, order: BlockShuffle) -> Iterator[WindowId]:
        """Yield (epoch, index in the epoch) of each window from which the rank needs samples, in the order in which
        they are first read."""
        for epoch in range(self.epoch, self.last_epoch + 1):
            blocks = order.epoch_blocks(epoch)
            own = [np.arange(*blocks.stream_windows[stream : stream + 2]) for stream in self.streams]
            numbers = np.unique(np.concatenate([*own, self._tail_windows(order, blocks)]).astype(np.int64))
            streams = np.searchsorted(blocks.stream_windows, numbers, side="right") - 1
            begin = order.stream_starts[streams]
            firsts = order.round_robin_position(streams, blocks.window_starts[numbers] - begin)
            ends = order.round_robin_position(streams, blocks.window_starts[numbers + 1] - begin)
            is_left = ends > self.position if epoch == self.epoch else np.ones(len(numbers), bool)
            for number in numbers[is_left][np.argsort(firsts[is_left], kind="stable")].tolist():
                yield epoch, number

    def _tail_windows(self, order: BlockShuffle, blocks: EpochBlocks) -> np.ndarray:
        return np.unique(blocks.window_numbers(order.offsets(self.tail)))


class _Separate(NamedTuple):
    """Samples of a batch whose rows are not in the buffer that all windows share, so that they are gathered separately.
    `indices`: their indices in the batch. `values`: dict from field name to their values."""

    indices: np.ndarray
    values: dict[str, np.ndarray]


class WindowReader:
    """Reader of a rank's samples from shuffle windows. Threads read the windows ahead, in the order of their first use.
    `close` ends the threads."""

    def __init__(self, prepared: PreparedSet, order: BlockShuffle, needed: ReadRange) -> None:
        self._order = order
        self._needed = needed
        self._prepared = prepared
        self._dtypes = {reader.name: dtype_of(reader.sample) for reader in prepared.readers}
        per_window = order.window_blocks * order.num_samples / order.num_blocks
        in_use = len(needed.streams) * per_window
        room = int(in_use * (1 + _AHEAD))
        rows_each = 1 if prepared.windows is None else prepared.windows.stride
        readers = () if prepared.lazy else prepared.readers
        kinds = {reader.name: (reader.row.shape, storage_dtype(reader, len(prepared.rows))) for reader in readers}
        # windows dropped in one call of `gather`, at most one per stream, are still needed while others are read
        self._buffer = RowBuffer(int(rows_each * (room + in_use + _SPARE * per_window)) + 1, kinds)
        self._dropped: list[LoadedWindow] = []  # in this call of `gather`, at whose end their memory is released
        self._loaded: Prefetcher[WindowId, LoadedWindow] = Prefetcher(
            lambda name: LoadedWindow(prepared, order, name, self._buffer),
            needed.windows(order),
            lambda name: order.epoch_blocks(name[0]).window(name[1]).size,
            room,
            max(1, min(_THREADS, torch.get_num_threads())),
        )
        self._current: dict[int, WindowId] = {}  # window that each stream uses

    def gather(self, of_epoch: int | None, positions: np.ndarray) -> Taken:
        """Return the samples at these positions of an epoch: their indices in the set, and a dict from field name to
        tensor.

        `of_epoch`: None means epoch 0. Positions must increase from call to call, because windows that are used up are
        dropped. Raises DataError.
        """
        return self.gather_offsets(of_epoch or 0, self._order.offsets(positions))

    def gather_batches(self, epoch: int, positions: np.ndarray, count: int) -> Taken:
        """Return the samples that a rank has in `count` consecutive full batches: their indices in the set, and a dict
        from field name to tensor. `positions`: the rank's positions in the first of these batches, counted from the
        start of the epoch. In each later batch, the rank has the samples with the same indices in the batch."""
        firsts, length = self._order.segments_of_batch(positions)
        if not length:
            return self.gather_offsets(epoch, self._order.offsets_of_batches(positions, count))
        return self._gather_streams(epoch, firsts, length, count)

    def _gather_streams(self, epoch: int, firsts: np.ndarray, length: int, count: int) -> Taken:
        """Return the samples of `count` consecutive batches: their indices in the set, and a dict from field name to
        tensor. A batch has the next `length` samples of each stream. `firsts`: for each stream, the offset of the first
        sample to return (an index into the shuffled list of the epoch's samples)."""
        blocks, size = self._order.epoch_blocks(epoch), count * length
        samples, rows = np.empty((2, count, len(firsts), length), np.int64)
        separate: list[_Separate] = []
        for stream, first in enumerate(firsts.tolist()):
            parts: list[tuple[np.ndarray, np.ndarray]] = []
            done = 0
            while done < size:
                number = int(blocks.window_numbers(np.asarray(first + done)))
                stop = min(size, int(blocks.window_starts[number + 1]) - first)
                if (loaded := self._buffered_window(epoch, number)) is not None:
                    inside = slice(first + done - loaded.window.start, first + stop - loaded.window.start)
                    parts.append((loaded.samples[inside], loaded.first_rows[inside]))
                else:
                    ids, values = self._gather_separately(epoch, number, np.arange(first + done, first + stop))
                    batch, index = np.divmod(np.arange(done, stop), length)
                    separate.append(_Separate((batch * len(firsts) + stream) * length + index, values))
                    parts.append((ids, np.zeros_like(ids)))
                done = stop
            for found, pieces in zip((samples, rows), zip(*parts, strict=True), strict=True):
                whole = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
                found[:, stream] = whole.reshape(count, length)
        return samples.reshape(-1), self._gather_tensors(rows.reshape(-1), separate)

    def gather_offsets(self, epoch: int, offsets: np.ndarray) -> Taken:
        """Return (indices in the set, {field: tensor}) of the samples at `offsets`, which are indices into the shuffled
        list of an epoch's samples (data/shuffle.py)."""
        segments, windows = Segments.find(offsets).split(self._order.epoch_blocks(epoch).window_starts[:-1])
        samples, rows = np.zeros((2, len(offsets)), np.int64)
        separate: list[_Separate] = []
        for number, mine in segments.group(windows):
            if (loaded := self._buffered_window(epoch, number)) is not None:
                inside = mine.source_rows(loaded.window.start)
                mine.copy_to(samples, loaded.samples[inside])
                mine.copy_to(rows, loaded.first_rows[inside])
            else:
                ids, values = self._gather_separately(epoch, number, mine.list_sources())
                mine.copy_to(samples, ids)
                separate.append(_Separate(mine.list_targets(), values))
        return samples, self._gather_tensors(rows, separate)

    def _gather_tensors(self, first_rows: np.ndarray, separate: Sequence[_Separate]) -> dict[str, torch.Tensor]:
        """Return a dict from field name to tensor, with one row for each sample.

        `first_rows`: for each sample, its first row in the buffer that all windows share. `separate`: samples that are
        not in the buffer, with their values; their entries of `first_rows` are ignored.
        """
        readers = self._prepared.readers
        if sum(len(each.indices) for each in separate) < len(first_rows):
            values = gather_rows(self._prepared, self._buffer.rows, first_rows)
        else:
            values = {
                reader.name: np.empty((len(first_rows), *reader.sample.shape), reader.storage) for reader in readers
            }
        for each in separate:
            for name, rows in each.values.items():
                values[name][each.indices] = rows
        while self._dropped:
            self._dropped.pop().release()
        # converted by NumPy, which uses this thread only
        wide = {reader.name: values[reader.name].astype(reader.storage, copy=False) for reader in readers}
        return {name: torch.from_numpy(array).to(self._dtypes[name]) for name, array in wide.items()}

    def _buffered_window(self, epoch: int, number: int) -> LoadedWindow | None:
        """Return the window with index `number` in an epoch if its rows are in the buffer that all windows share, else
        None."""
        window = self._find_window((epoch, number))
        return window if window is not None and window.is_in_buffer else None

    def _find_window(self, name: WindowId) -> LoadedWindow | None:
        """Return the window with this epoch and index in the epoch, after waiting until it is read. Drop the windows
        that its stream has used up. Return None if this rank does not need the window."""
        if not self._needed.includes(self._order, name):
            return None
        found = self._loaded.get(name)
        stream = found.window.stream
        before = self._current.get(stream)
        if before is not None and before < name:
            blocks = self._order.epoch_blocks
            self._dropped += self._loaded.drop(
                lambda other: other < name and blocks(other[0]).window(other[1]).stream == stream
            )
        self._current[stream] = name
        return found

    def _gather_separately(
        self, epoch: int, number: int, offsets: np.ndarray
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return (indices in the set, {field: values}) of the samples at `offsets`, which are in the window `number`.
        Samples of a window that this rank does not need are read from the table: they are padding."""
        if (loaded := self._find_window((epoch, number))) is not None:
            return loaded.gather(offsets - loaded.window.start)
        samples = self._order.epoch_blocks(epoch).sample_indices(offsets)
        with as_data_error(self._prepared):
            return samples, self._prepared.gather(samples, epoch=epoch)

    def close(self) -> None:
        self._loaded.close()
        self._dropped.clear()


def gather_mixture(samples: SampleSet, order: MixtureOrder, epoch: int, positions: np.ndarray) -> Taken:
    """Return (number of each sample, {field: tensor}) for the samples at `positions` of an epoch. The mixture is in
    memory, or read row by row. `MixtureOrder.sample_numbers` explains the numbers.

    If an epoch uses an image twice, its random transforms differ, because they depend on the epoch of its source.
    Raises DataError.
    """
    draws = order.draw(epoch, positions)
    found = order.sample_indices(draws)
    numbers = order.sample_numbers(found, draws)
    if not samples.prepared.lazy:
        return numbers, samples.gather(found)
    groups = [(mine, samples.gather(found[mine], source_epoch)) for _, source_epoch, mine in draws.groups()]
    return numbers, _join_groups(groups, len(positions))


class MixtureReader:
    """Reader of a rank's samples from a mixture of sources, some of which are block-shuffled. `unpadded`: function from
    a step to the positions of the rank's samples in this step, without padding. `close` ends the threads."""

    def __init__(
        self,
        prepared: PreparedSet,
        order: MixtureOrder,
        batch: BatchSpec,
        first_step: int,
        num_steps: int,
        unpadded: Callable[[int], np.ndarray],
    ) -> None:
        self._order = order
        self._rows = ReadSet(prepared)
        first = locate(first_step, batch, prepared.num_samples)
        last = locate(first_step + max(num_steps, 1) - 1, batch, prepared.num_samples)
        ends = [
            found.epoch * prepared.num_samples + position
            for found, position in ((first, first.start), (last, last.start + last.size))
        ]
        streams = self._streams(batch, unpadded) if order.block_shuffles else {}
        self._readers: dict[int, WindowReader] = {}
        for source, shuffle in order.block_shuffles.items():
            begin, end = order.schedule.count_before(source, np.asarray(ends)).tolist()
            (epoch, position), last_epoch = (
                divmod(begin, shuffle.num_samples),
                max(end - 1, begin) // shuffle.num_samples,
            )
            needed = ReadRange(streams[source], np.empty(0, np.int64), epoch, position, last_epoch)
            self._readers[source] = WindowReader(prepared, shuffle, needed)

    def _streams(self, batch: BatchSpec, unpadded: Callable[[int], np.ndarray]) -> dict[int, tuple[int, ...]]:
        """Return a dict from each block-shuffled source to the streams (parts of the source's order) of which this rank
        reads whole windows.

        The streams that a rank needs vary from step to step, so the dict has those of many steps of an epoch. If a step
        needs a sample of another stream, the sample is read as a single row.
        """
        most = min(batch.steps_per_epoch, max(1, _LOOKED_AT // batch.global_batch_size))
        found: dict[int, set[int]] = {source: set() for source in self._order.block_shuffles}
        for step in np.unique(np.linspace(1, batch.steps_per_epoch, most).astype(np.int64)).tolist():
            draws = self._order.draw(0, unpadded(step))
            for source, shuffle in self._order.block_shuffles.items():
                offsets = draws.indices[draws.sources == source]
                found[source] |= set((np.searchsorted(shuffle.stream_starts, offsets, side="right") - 1).tolist())
        return {source: tuple(sorted(streams)) for source, streams in found.items()}

    def gather(self, of_epoch: int | None, positions: np.ndarray) -> Taken:
        """Return (numbers, values) of the samples at these positions of an epoch. `numbers`: for each sample, the
        number that seeds its random transforms (`MixtureOrder.sample_numbers`). `values`: dict from field name to
        tensor. `of_epoch`: None means epoch 0. Raises DataError."""
        draws = self._order.draw(of_epoch or 0, positions)
        samples, groups = np.empty(len(positions), np.int64), []
        for source, source_epoch, mine in draws.groups():
            if source in self._readers:
                ids, tensors = self._readers[source].gather_offsets(source_epoch, draws.indices[mine])
            else:
                ids = self._order.source_samples(source, source_epoch, draws.indices[mine])
                tensors = self._rows.gather(ids, source_epoch)
            samples[mine] = ids
            groups.append((mine, tensors))
        return self._order.sample_numbers(samples, draws), _join_groups(groups, len(positions))

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()


def _join_groups(groups: list[tuple[np.ndarray, dict[str, torch.Tensor]]], size: int) -> dict[str, torch.Tensor]:
    """Join groups of rows to a batch of `size` rows, and return a dict from field name to tensor. A group is (indices,
    dict from field name to tensor): row k of its tensors becomes the row `indices[k]` of the batch."""
    back = np.empty(size, np.int64)
    back[np.concatenate([mine for mine, _ in groups])] = np.arange(size)
    index = torch.from_numpy(back)
    return {name: torch.cat([tensors[name] for _, tensors in groups]).index_select(0, index) for name in groups[0][1]}


@dataclass(frozen=True, slots=True)
class WorkerSlice:
    """Rows of a rank that one loader process reads in the steps from `first_step` on, for `num_steps` steps.

    The rows of a rank in each chunk are divided into `num_workers` slices of about equal length; this is the slice with
    the index `worker`. Without loader processes, there is one slice with all rows.
    """

    prepared: PreparedSet
    order: BlockShuffle | MixtureOrder
    batch: BatchSpec
    dp_rank: int
    first_step: int
    num_steps: int
    worker: int = 0
    num_workers: int = 1

    def open_reader(self) -> WindowReader | MixtureReader:
        """Return a reader of these rows, whose threads read ahead. Close it at the end."""
        if isinstance(self.order, MixtureOrder):
            return MixtureReader(self.prepared, self.order, self.batch, self.first_step, self.num_steps, self.unpadded)
        num_samples = self.prepared.num_samples
        last = locate(self.first_step + max(self.num_steps, 1) - 1, self.batch, num_samples)
        first = locate(self.first_step, self.batch, num_samples)
        needed = ReadRange(self._streams(self.order), self._tail(), first.epoch, first.start, last.epoch)
        return WindowReader(self.prepared, self.order, needed)

    def unpadded(self, step: int) -> np.ndarray:
        """Return the positions of the epoch that this loader process reads in a step, without padding, as one array."""
        return np.concatenate(self.positions(step, pads=False))

    def positions(self, step: int, *, pads: bool) -> list[np.ndarray]:
        """Return, for each chunk of a step, the positions in the epoch of the samples that this loader process reads.
        `pads`: also return the positions of padding."""
        chunks = rank_chunks(locate(step, self.batch, self.prepared.num_samples), self.batch, self.dp_rank)
        slices = [np.array_split(positions_of(chunk), self.num_workers) for chunk in chunks]
        before = [sum(map(len, each[: self.worker])) for each in slices]
        return [
            each[self.worker] if pads else each[self.worker][: max(0, chunk.num_rows - skipped)]
            for chunk, each, skipped in zip(chunks, slices, before, strict=True)
        ]

    def _streams(self, order: BlockShuffle) -> tuple[int, ...]:
        """Return the indices of the streams (data/shuffle.py) from which this loader process reads in full batches. If
        the number of streams does not divide the batch size, they differ from step to step and repeat after some steps;
        then the streams of all these steps are returned."""
        cycle = order.num_streams // gcd(order.num_streams, self.batch.global_batch_size)
        num_full = self.prepared.num_samples // self.batch.global_batch_size
        steps = [self.unpadded(step) for step in range(1, min(cycle, num_full) + 1)]
        positions = np.concatenate(steps) if steps else np.empty(0, np.int64)
        return tuple(int(stream) for stream in np.unique(order.streams(positions)[0]))

    def _tail(self) -> np.ndarray:
        """Return the positions that this loader process reads in the smaller last batch of an epoch; an empty array if
        the last batch is full."""
        last = self.batch.steps_per_epoch
        is_full = last * self.batch.global_batch_size <= self.prepared.num_samples
        return np.empty(0, np.int64) if is_full else self.unpadded(last)


def read_with_workers(rows: WorkerSlice, num_workers: int) -> Iterator[list[Batch]]:
    """Yield this rank's batches of each step. The samples of a step are read by `num_workers` loader processes, each of
    which reads only some of the rank's streams. `rows`: all rows of the rank."""
    workers = [_Worker(replace(rows, worker=number, num_workers=num_workers)) for number in range(num_workers)]

    def make(number: int) -> Any:  # in process number % num_workers, which so makes its slice of every step
        return workers[number % num_workers].make(number // num_workers)

    made = by_workers(make, 0, rows.num_steps * num_workers, num_workers)
    for step in range(rows.first_step, rows.first_step + rows.num_steps):
        results = [next(made) for _ in range(num_workers)]
        found = locate(step, rows.batch, rows.prepared.num_samples)
        yield make_batches(rank_chunks(found, rows.batch, rows.dp_rank), _join_workers(results), found.epoch)


class _Worker:
    """Loader process: it reads the rows `rows` of a rank."""

    def __init__(self, rows: WorkerSlice) -> None:
        self._slice = rows
        self._reader: WindowReader | MixtureReader | None = None

    def make(self, number: int) -> Any:
        """Read the rows of step `number`, counted from the first step. Return (batch with these rows, packed for
        another process; number of rows in each chunk)."""
        if self._reader is None:  # started in the process that uses it: threads do not survive a fork
            self._reader = self._slice.open_reader()
        step = self._slice.first_step + number
        epoch = locate(step, self._slice.batch, self._slice.prepared.num_samples).epoch
        chunks = self._slice.positions(step, pads=True)
        positions = np.concatenate(chunks)
        if not len(positions):  # the last, smaller batch of an epoch may have no row for this process
            return Batch({}, 0, None, positions, epoch), [0] * len(chunks)
        ids, tensors = self._reader.gather(epoch, positions)
        return pack_batch(Batch(tensors, len(ids), None, ids, epoch)), [len(each) for each in chunks]


def _join_workers(results: list[Any]) -> Callable[[int | None, np.ndarray], Taken]:
    """Return a function that `make_batches` calls with (epoch, positions) to get (sample numbers, tensors). It ignores
    its arguments, and returns what the loader processes have read for one step, joined chunk by chunk. `results`: the
    result of `_Worker.make` of each process."""
    batches = [unpack_batch(batch) for batch, _ in results]
    ends = [np.cumsum([0, *sizes]) for _, sizes in results]

    def take(_: int | None, positions: np.ndarray) -> Taken:
        rows = [
            (batch, slice(int(each[chunk]), int(each[chunk + 1])))
            for chunk in range(len(ends[0]) - 1)
            for batch, each in zip(batches, ends, strict=True)
        ]
        full = [(batch, own) for batch, own in rows if own.stop > own.start]
        ids = np.concatenate([batch.sample_ids[own] for batch, own in full])
        names = max(batches, key=lambda batch: batch.num_rows).tensors
        return ids, {name: torch.cat([batch.tensors[name][own] for batch, own in full]) for name in names}

    return take
