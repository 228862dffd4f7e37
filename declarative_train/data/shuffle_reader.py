"""Reader of a block-shuffled set, for one rank or one loader process. It takes samples from shuffle windows that
threads read ahead.

Threads stop reading ahead when the windows in memory have a certain number of samples, so that memory does not grow
during a run. A window is dropped when its stream (part of the set) reaches the next window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import gcd
from typing import Any, NamedTuple

import numpy as np
import torch

from declarative_train.data.batch import Batch, Taken, make_batches, pack_batch, positions_of, unpack_batch
from declarative_train.data.mixture import MixedOrder
from declarative_train.data.order import locate, slots
from declarative_train.data.prefetch import Prefetcher, by_workers
from declarative_train.data.prepared_set import PreparedSet
from declarative_train.data.shuffle import BlockShuffle, EpochBlocks
from declarative_train.data.shuffle_windows import Arena, HeldWindow, Runs, WindowName, gather_rows, window_dtype
from declarative_train.data.spec import BatchSpec
from declarative_train.data.tensor_sets import ReadSet, SampleSet, as_data_error, dtype_of

_AHEAD = 0.25  # samples that threads may read ahead, as a share of the samples in use
_SPARE = 2  # additional windows for which the arena has room
_THREADS = 4
_LOOKED_AT = 1 << 18  # positions that are examined to find the streams that a rank reads


@dataclass(frozen=True, slots=True, eq=False)
class RankNeeds:
    """Samples that a rank reads, from position `position` of epoch `epoch` to the end of epoch `last_epoch`. In a
    mixture, a pass over the source takes the place of an epoch.

    `streams`: indices of the streams (data/shuffle.py) that the rank reads in full batches. `tail`: the rank's
    positions in the last batch of an epoch if that batch is not full, else empty.
    """

    streams: tuple[int, ...]
    tail: np.ndarray
    epoch: int
    position: int
    last_epoch: int

    def has(self, order: BlockShuffle, name: WindowName) -> bool:
        layout = order.epoch_blocks(name[0])
        return layout.window(name[1]).stream in self.streams or name[1] in self._last(order, layout)

    def windows(self, order: BlockShuffle) -> Iterator[WindowName]:
        """Yield (epoch, index in the epoch) of each window from which the rank needs samples, in the order in which
        they are first read."""
        for epoch in range(self.epoch, self.last_epoch + 1):
            layout = order.epoch_blocks(epoch)
            own = [np.arange(*layout.stream_windows[stream : stream + 2]) for stream in self.streams]
            numbers = np.unique(np.concatenate([*own, self._last(order, layout)]).astype(np.int64))
            streams = np.searchsorted(layout.stream_windows, numbers, side="right") - 1
            begin = order.stream_starts[streams]
            firsts = order.round_robin_position(streams, layout.window_starts[numbers] - begin)
            ends = order.round_robin_position(streams, layout.window_starts[numbers + 1] - begin)
            is_left = ends > self.position if epoch == self.epoch else np.ones(len(numbers), bool)
            for number in numbers[is_left][np.argsort(firsts[is_left], kind="stable")].tolist():
                yield epoch, number

    def _last(self, order: BlockShuffle, layout: EpochBlocks) -> np.ndarray:
        return np.unique(layout.window_numbers(order.offsets(self.tail)))


class _Apart(NamedTuple):
    """Samples of a batch whose rows are not in the arena (the common memory of windows), so that they are gathered
    separately. `places`: their indices in the batch. `values`: dict from field name to their values."""

    places: np.ndarray
    values: dict[str, np.ndarray]


class WindowsAhead:
    """Shuffle windows that a rank needs. Threads read them ahead, in the order of their first use. `close` ends the
    threads."""

    def __init__(self, prepared: PreparedSet, order: BlockShuffle, needs: RankNeeds) -> None:
        self._order = order
        self._needs = needs
        self._prepared = prepared
        self._dtypes = {part.name: dtype_of(part.sample) for part in prepared.parts}
        per_window = order.window * order.num_samples / order.num_blocks
        in_use = len(needs.streams) * per_window
        room = int(in_use * (1 + _AHEAD))
        rows_each = 1 if prepared.windows is None else prepared.windows.stride
        parts = () if prepared.lazy else prepared.parts
        kinds = {part.name: (part.row.shape, window_dtype(prepared, part)) for part in parts}
        # windows dropped in one call of `gather`, at most one per stream, are still needed while others are read
        self._arena = Arena(int(rows_each * (room + in_use + _SPARE * per_window)) + 1, kinds)
        self._done: list[HeldWindow] = []  # dropped in this call of `gather`, at whose end their memory is released
        self._held: Prefetcher[WindowName, HeldWindow] = Prefetcher(
            lambda name: HeldWindow(prepared, order, name, self._arena),
            needs.windows(order),
            lambda name: order.epoch_blocks(name[0]).window(name[1]).size,
            room,
            max(1, min(_THREADS, torch.get_num_threads())),
        )
        self._current: dict[int, WindowName] = {}

    def gather(self, of_epoch: int | None, positions: np.ndarray) -> Taken:
        """Return the samples at these positions of an epoch: their indices in the set, and a dict from field name to
        tensor.

        `of_epoch`: None means epoch 0. Positions must increase from call to call, because windows that are used up are
        dropped. Raises DataError.
        """
        return self.at(of_epoch or 0, self._order.offsets(positions))

    def of_batches(self, epoch: int, positions: np.ndarray, count: int) -> Taken:
        """Return the samples that a rank has in `count` consecutive full batches: their indices in the set, and a dict
        from field name to tensor. `positions`: the rank's positions in the first of these batches, counted from the
        start of the epoch. In each later batch, the rank has the samples at the same places of the batch."""
        firsts, length = self._order.segments_of_batch(positions)
        if not length:
            return self.at(epoch, self._order.offsets_of_batches(positions, count))
        return self._of_streams(epoch, firsts, length, count)

    def _of_streams(self, epoch: int, firsts: np.ndarray, length: int, count: int) -> Taken:
        """Return the samples of `count` consecutive batches: their indices in the set, and a dict from field name to
        tensor. A batch has the next `length` samples of each stream. `firsts`: for each stream, the index in the block
        layout of the first sample to return. `data/shuffle.py` explains streams and block layouts."""
        layout, size = self._order.epoch_blocks(epoch), count * length
        samples, index = np.empty((2, count, len(firsts), length), np.int64)
        apart: list[_Apart] = []
        for row, first in enumerate(firsts.tolist()):
            parts: list[tuple[np.ndarray, np.ndarray]] = []
            done = 0
            while done < size:
                number = int(layout.window_numbers(np.asarray(first + done)))
                stop = min(size, int(layout.window_starts[number + 1]) - first)
                if (window := self._window_in_arena(epoch, number)) is not None:
                    inside = slice(first + done - window.window.start, first + stop - window.window.start)
                    parts.append((window.samples[inside], window.index[inside]))
                else:
                    ids, values = self._apart(epoch, number, np.arange(first + done, first + stop))
                    turn, slot = np.divmod(np.arange(done, stop), length)
                    apart.append(_Apart((turn * len(firsts) + row) * length + slot, values))
                    parts.append((ids, np.zeros_like(ids)))
                done = stop
            for found, pieces in zip((samples, index), zip(*parts, strict=True), strict=True):
                whole = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
                found[:, row] = whole.reshape(count, length)
        return samples.reshape(-1), self._gather_tensors(index.reshape(-1), apart)

    def at(self, epoch: int, places: np.ndarray) -> Taken:
        """Return (indices in the set, {field: tensor}) of samples of an epoch. `places`: indices of the samples in the
        epoch's block layout (data/shuffle.py)."""
        layout = self._order.epoch_blocks(epoch)
        runs, numbers = Runs.of(places).cut(layout.window_starts[:-1])
        samples, index = np.zeros((2, len(places)), np.int64)
        apart: list[_Apart] = []
        for number, mine in runs.by(numbers):
            if (window := self._window_in_arena(epoch, number)) is not None:
                inside = mine.numbers(window.window.start)
                mine.put(samples, window.samples[inside])
                mine.put(index, window.index[inside])
            else:
                found = self._apart(epoch, number, mine.list_numbers())
                mine.put(samples, found[0])
                apart.append(_Apart(mine.list_places(), found[1]))
        return samples, self._gather_tensors(index, apart)

    def _gather_tensors(self, index: np.ndarray, apart: Sequence[_Apart]) -> dict[str, torch.Tensor]:
        """Return a dict from field name to tensor, with one row for each sample.

        `index`: for each sample, its first row in the arena, the common memory of windows. `apart`: samples that are
        not in the arena, with their values; their entries of `index` are ignored.
        """
        parts = self._prepared.parts
        if sum(len(each.places) for each in apart) < len(index):
            values = gather_rows(self._prepared, self._arena.rows, index)
        else:
            values = {part.name: np.empty((len(index), *part.sample.shape), part.storage) for part in parts}
        for each in apart:
            for name, rows in each.values.items():
                values[name][each.places] = rows
        while self._done:
            self._done.pop().release()
        # converted by NumPy, which uses this thread only
        wide = {part.name: values[part.name].astype(part.storage, copy=False) for part in parts}
        return {name: torch.from_numpy(array).to(self._dtypes[name]) for name, array in wide.items()}

    def _window_in_arena(self, epoch: int, number: int) -> HeldWindow | None:
        """Return the window with index `number` in an epoch if its rows are in the arena (the common memory of
        windows), else None."""
        window = self._window(epoch, number)
        return None if window is None or window.is_apart else window

    def _window(self, epoch: int, number: int) -> HeldWindow | None:
        """Return the window with index `number` in an epoch, after waiting until it is read; None if this rank does not
        need it."""
        return self._take((epoch, number)) if self._needs.has(self._order, (epoch, number)) else None

    def _apart(self, epoch: int, number: int, places: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        if (window := self._window(epoch, number)) is not None:
            return window.gather(places - window.window.start)
        samples = self._order.epoch_blocks(epoch).sample_indices(
            places
        )  # padding: a row of the batch that another rank reads
        with as_data_error(self._prepared):
            return samples, self._prepared.gather(samples, epoch=epoch)

    def _take(self, name: WindowName) -> HeldWindow:
        found = self._held.get(name)
        stream = found.window.stream
        before = self._current.get(stream)
        if before is not None and before < name:
            self._done += self._held.drop(lambda other: other < name and self._stream(other) == stream)
        self._current[stream] = name
        return found

    def _stream(self, name: WindowName) -> int:
        return self._order.epoch_blocks(name[0]).window(name[1]).stream

    def close(self) -> None:
        self._held.close()
        self._done.clear()


def gather_mixture(samples: SampleSet, order: MixedOrder, epoch: int, positions: np.ndarray) -> Taken:
    """Return (number of each sample, {field: tensor}) for the samples at `positions` of an epoch. The mixture is in
    memory, or read row by row. `MixedOrder.numbers` explains the numbers.

    If an epoch uses an image twice, its random transforms differ, because they depend on the pass over the source.
    Raises DataError.
    """
    placed = order.at(epoch, positions)
    found = order.sample_indices(placed)
    numbers = order.numbers(found, placed)
    if not samples.prepared.lazy:
        return numbers, samples.gather(found)
    pieces = [(mine, samples.gather(found[mine], number)) for _, number, mine in placed.pieces()]
    return numbers, _join_pieces(pieces, len(positions))


class MixedWindows:
    """Reader of a rank's samples from a mixture of sources, some of which are block-shuffled. `unpadded`: function from
    a step to the positions of the rank's samples in this step, without padding. `close` ends the threads."""

    def __init__(
        self,
        prepared: PreparedSet,
        order: MixedOrder,
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
            found.epoch * prepared.num_samples + place
            for found, place in ((first, first.start), (last, last.start + last.size))
        ]
        streams = self._streams(batch, unpadded) if order.rolled else {}
        self._ahead: dict[int, WindowsAhead] = {}
        for source, rolled in order.rolled.items():
            begin, end = order.schedule.before(source, np.asarray(ends)).tolist()
            (at_pass, place), last_pass = divmod(begin, rolled.num_samples), max(end - 1, begin) // rolled.num_samples
            needs = RankNeeds(streams[source], np.empty(0, np.int64), at_pass, place, last_pass)
            self._ahead[source] = WindowsAhead(prepared, rolled, needs)

    def _streams(self, batch: BatchSpec, unpadded: Callable[[int], np.ndarray]) -> dict[int, tuple[int, ...]]:
        """Return a dict from each block-shuffled source to the streams (parts of the source's order) of which this rank
        reads whole windows.

        The streams that a rank needs vary from step to step, so the dict has those of many steps of an epoch. If a step
        needs a sample of another stream, the sample is read as a single row.
        """
        most = min(batch.steps_per_epoch, max(1, _LOOKED_AT // batch.global_batch_size))
        found: dict[int, set[int]] = {source: set() for source in self._order.rolled}
        for step in np.unique(np.linspace(1, batch.steps_per_epoch, most).astype(np.int64)).tolist():
            placed = self._order.at(0, unpadded(step))
            for source, rolled in self._order.rolled.items():
                places = placed.places[placed.sources == source]
                found[source] |= set((np.searchsorted(rolled.stream_starts, places, side="right") - 1).tolist())
        return {source: tuple(sorted(streams)) for source, streams in found.items()}

    def gather(self, of_epoch: int | None, positions: np.ndarray) -> Taken:
        """Return (numbers, values) of the samples at these positions of an epoch. `numbers`: for each sample, the
        number that seeds its random transforms (`MixedOrder.numbers`). `values`: dict from field name to tensor.
        `of_epoch`: None means epoch 0. Raises DataError."""
        placed = self._order.at(of_epoch or 0, positions)
        samples, pieces = np.empty(len(positions), np.int64), []
        for source, number, mine in placed.pieces():
            places = placed.places[mine]
            if source in self._ahead:
                ids, tensors = self._ahead[source].at(number, places)
            else:
                ids = self._order.of_source(source, number, places)
                tensors = self._rows.gather(ids, number)
            samples[mine] = ids
            pieces.append((mine, tensors))
        return self._order.numbers(samples, placed), _join_pieces(pieces, len(positions))

    def close(self) -> None:
        for ahead in self._ahead.values():
            ahead.close()


def _join_pieces(pieces: list[tuple[np.ndarray, dict[str, torch.Tensor]]], size: int) -> dict[str, torch.Tensor]:
    """Join pieces of a batch of `size` rows, and return a dict from field name to tensor. A piece is (indices, dict
    from field name to tensor): row k of its tensors becomes the row `indices[k]` of the batch."""
    back = np.empty(size, np.int64)
    back[np.concatenate([mine for mine, _ in pieces])] = np.arange(size)
    index = torch.from_numpy(back)
    return {name: torch.cat([tensors[name] for _, tensors in pieces]).index_select(0, index) for name in pieces[0][1]}


@dataclass(frozen=True, slots=True)
class RolledShare:
    """Share of a rank's rows that one loader process makes.

    Of each chunk, this is part number `part` (from 0) of `num_parts` parts of the rank's rows. Without loader
    processes, there is one part with all rows.
    """

    prepared: PreparedSet
    order: BlockShuffle | MixedOrder
    batch: BatchSpec
    dp_rank: int
    first_step: int
    num_steps: int
    part: int = 0
    num_parts: int = 1

    def windows(self) -> WindowsAhead | MixedWindows:
        if isinstance(self.order, MixedOrder):
            return MixedWindows(self.prepared, self.order, self.batch, self.first_step, self.num_steps, self.unpadded)
        num_samples = self.prepared.num_samples
        last = locate(self.first_step + max(self.num_steps, 1) - 1, self.batch, num_samples)
        first = locate(self.first_step, self.batch, num_samples)
        needs = RankNeeds(self._streams(self.order), self._tail(), first.epoch, first.start, last.epoch)
        return WindowsAhead(self.prepared, self.order, needs)

    def positions(self, step: int) -> list[np.ndarray]:
        """Return, for each chunk of a step, the positions in the epoch of the samples that this loader process reads,
        including those of padding."""
        return self._of_part(step, pads=True)

    def unpadded(self, step: int) -> np.ndarray:
        """Return the positions of the epoch that this loader process reads in a step, without padding, as one array."""
        return np.concatenate(self._of_part(step, pads=False))

    def _of_part(self, step: int, *, pads: bool) -> list[np.ndarray]:
        """Return, for each chunk of a step, the positions in the epoch of the samples that this loader process reads.
        `pads`: also return the positions of padding."""
        found = locate(step, self.batch, self.prepared.num_samples)
        mine = slots(found, self.batch, self.dp_rank)
        parts = [np.array_split(positions_of(slot), self.num_parts) for slot in mine]
        before = [sum(map(len, each[: self.part])) for each in parts]
        return [
            each[self.part] if pads else each[self.part][: max(0, slot.num_rows - skipped)]
            for slot, each, skipped in zip(mine, parts, before, strict=True)
        ]

    def _streams(self, order: BlockShuffle) -> tuple[int, ...]:
        """Return the indices of the streams (data/shuffle.py) from which this loader process reads in full batches. If
        the number of streams does not divide the batch size, they differ from step to step and repeat after some steps;
        then the streams of all these steps are returned."""
        cycle = order.num_streams // gcd(order.num_streams, self.batch.global_batch_size)
        num_full = self.prepared.num_samples // self.batch.global_batch_size
        chunks = [each for step in range(1, min(cycle, num_full) + 1) for each in self._of_part(step, pads=False)]
        positions = np.concatenate(chunks) if chunks else np.empty(0, np.int64)
        return tuple(int(stream) for stream in np.unique(order.streams(positions)[0]))

    def _tail(self) -> np.ndarray:
        """Return the positions that this loader process reads in the smaller last batch of an epoch; an empty array if
        the last batch is full."""
        last = self.batch.steps_per_epoch
        is_full = last * self.batch.global_batch_size <= self.prepared.num_samples
        return np.empty(0, np.int64) if is_full else self.unpadded(last)


def by_parts(share: RolledShare, num_workers: int) -> Iterator[list[Batch]]:
    """Yield this rank's batches of each step. The samples of a step are read by `num_workers` loader processes, each of
    which reads only some of the rank's streams."""
    makers = [_PartMaker(share, part, num_workers) for part in range(num_workers)]
    made = by_workers(partial(_make, makers), 0, share.num_steps * num_workers, num_workers)
    for step in range(share.first_step, share.first_step + share.num_steps):
        pieces = [next(made) for _ in range(num_workers)]
        found = locate(step, share.batch, share.prepared.num_samples)
        yield make_batches(slots(found, share.batch, share.dp_rank), _join(pieces), found.epoch)


def _make(makers: list[_PartMaker], number: int) -> Any:
    """Make result `number` of the loader processes. With P processes, this is part `number % P` of step `number // P`,
    counted from the first step, so process p makes part p of every step."""
    share = makers[number % len(makers)]
    return share.make(number // len(makers))


class _PartMaker:
    def __init__(self, share: RolledShare, part: int, num_parts: int) -> None:
        self._share = replace(share, part=part, num_parts=num_parts)
        self._windows: WindowsAhead | MixedWindows | None = None

    def make(self, number: int) -> Any:
        if self._windows is None:  # started in the process that uses them: threads do not survive a fork
            self._windows = self._share.windows()
        step = self._share.first_step + number
        epoch = locate(step, self._share.batch, self._share.prepared.num_samples).epoch
        chunks = self._share.positions(step)
        positions = np.concatenate(chunks)
        if not len(positions):  # the last, smaller batch of an epoch may have no row for this part
            return Batch({}, 0, None, positions, epoch), [0] * len(chunks)
        ids, tensors = self._windows.gather(epoch, positions)
        return pack_batch(Batch(tensors, len(ids), None, ids, epoch)), [len(each) for each in chunks]


def _join(pieces: list[Any]) -> Callable[[int | None, np.ndarray], tuple[np.ndarray, dict[str, torch.Tensor]]]:
    """Return a function that `make_batches` calls with (epoch, positions) to get (sample numbers, tensors). It ignores
    its arguments, and returns what the loader processes have read for one step, joined chunk by chunk. `pieces`: the
    result of each process."""
    batches = [unpack_batch(batch) for batch, _ in pieces]
    places = [np.cumsum([0, *sizes]) for _, sizes in pieces]

    def take(_: int | None, positions: np.ndarray) -> tuple[np.ndarray, dict[str, torch.Tensor]]:
        runs = [
            (batch, slice(int(ends[chunk]), int(ends[chunk + 1])))
            for chunk in range(len(places[0]) - 1)
            for batch, ends in zip(batches, places, strict=True)
        ]
        full = [(batch, run) for batch, run in runs if run.stop > run.start]
        ids = np.concatenate([batch.sample_ids[run] for batch, run in full])
        names = max(batches, key=lambda batch: batch.num_rows).tensors
        return ids, {name: torch.cat([batch.tensors[name][run] for batch, run in full]) for name in names}

    return take
