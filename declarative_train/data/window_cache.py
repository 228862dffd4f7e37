"""Window cache: windows of a block-shuffled set, each read and converted once, ahead of its use, by threads.

Batches are gathered from the windows. A window is dropped when its stream goes on to the next one. The threads' lead
is limited by the samples in memory, so that memory does not grow during a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from declarative_train.data.batch import Taken
from declarative_train.data.block_shuffle import BlockPiece, EpochLayout, RolledOrder, ShuffleWindow
from declarative_train.data.field_reader import FieldReader
from declarative_train.data.late import LateValues
from declarative_train.data.materialize import BadSampleError, PreparedSet, storage_dtype
from declarative_train.data.prefetch import Prefetcher
from declarative_train.data.read_block import convert_good, convert_into
from declarative_train.data.sets import as_data_error, dtype_of
from declarative_train.data.skipping import LOG, Skipped
from declarative_train.data.window_memory import Arena, Runs
from declarative_train.data.windows import Windows

WindowName = tuple[int, int]
"""Window by its epoch and number."""
_AHEAD = 0.25  # threads may prepare this share of the samples in use ahead
_SPARE = 2  # further windows that fit
_THREADS = 4
_LONG = 8  # rows of a window from which on they are moved together


class HeldWindow:
    """Samples of a window in memory: the rows of its pieces, by field, or the columns of images.

    samples  (size,) int64, the numbers of the samples in the window's order
    index    (size,) int64, the first row of each: in the arena or, if that was full, in its own arrays. Consecutive
             samples of a stream may have rows anywhere: one gather costs less than sorting the rows first
    """

    def __init__(self, prepared: PreparedSet, order: RolledOrder, name: WindowName, arena: Arena) -> None:
        """Read a window. Raises DataError."""
        layout = order.epoch(name[0])
        self.window: ShuffleWindow = layout.window(name[1])
        self._prepared = prepared
        self._arena = arena
        self._place: int | None = None
        self._num_rows = 0
        pieces = [_Stretch.of(prepared, piece) for piece in layout.pieces(self.window)]
        parts = [part for part in prepared.parts if not part.field.reads_late]
        with as_data_error(prepared):
            starts = self._read(pieces, parts) if prepared.skips is None else self._read_good(pieces, parts)
        inner = self.window.order()
        self.samples = _of_pieces([(each.first, each.count) for each in pieces]).take(inner)
        self.index = inner if starts is None else starts.take(inner)
        if self._place:
            self.index += self._place
        self._first_index = self.index if prepared.skips is None else self.index.copy()
        self._tried: dict[int, int] = {}

    @property
    def is_apart(self) -> bool:
        """True if its samples cannot be gathered together with those of other windows."""
        return self._place is None

    def _room(self, parts: Sequence[FieldReader], num_rows: int) -> dict[FieldReader, np.ndarray]:
        """Return memory for the rows of each field."""
        self._num_rows, self._place = num_rows, None if self._prepared.late else self._arena.take(num_rows)
        if self._place is None:
            own = {part: np.empty((num_rows, *part.row.shape), _kind(self._prepared, part)) for part in parts}
            self._rows = {part.name: array for part, array in own.items()}
            return own
        self._rows = self._arena.rows
        return {part: self._rows[part.name][self._place : self._place + num_rows] for part in parts}

    def _read(self, pieces: Sequence[_Stretch], parts: Sequence[FieldReader]) -> np.ndarray | None:
        """Read the pieces; return the first row of each sample, or None if sample k has row k."""
        offsets = np.cumsum([0, *(each.num_rows for each in pieces)]).tolist()
        rows = self._room(parts, offsets[-1])
        raw = [
            convert_into(
                self._prepared,
                piece.rows,
                {part: array[begin:end] for part, array in rows.items()},
                self._prepared.late,
            )
            for piece, (begin, end) in zip(pieces, pairwise(offsets), strict=True)
        ]
        self._raw = {name: np.concatenate([each[name] for each in raw]) for name in raw[0]}
        if self._prepared.windows is None:
            return None
        return np.concatenate([piece.starts() + offset for piece, offset in zip(pieces, offsets, strict=False)])

    def _read_good(self, pieces: Sequence[_Stretch], parts: Sequence[FieldReader]) -> np.ndarray:
        """Read the pieces without bad rows: each is replaced by the next good one of its piece."""
        starts, offset = [], 0
        values: list[dict[str, np.ndarray]] = []
        raws: list[dict[str, np.ndarray]] = []
        for piece in pieces:
            made, raw, stands = convert_good(self._prepared, piece.rows, parts, self._prepared.late)
            starts.append((piece.starts() if stands is None else stands[piece.starts()]) + offset)
            offset += piece.num_rows if stands is None else int(stands.max()) + 1
            values.append(made)
            raws.append(raw)
        for part, room in self._room(parts, offset).items():
            np.concatenate([each[part.name] for each in values], out=room, casting="unsafe")  # into narrow integers
        self._raw = {name: np.concatenate([each[name] for each in raws]) for name in raws[0]}
        return np.concatenate(starts)

    def release(self) -> None:
        """Give its memory back to the arena; its rows must not be read after this."""
        if self._place is not None:
            self._arena.give(self._place, self._num_rows)

    def gather(self, places: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the numbers of the samples at these places of the window, and (N, *sample shape) by field.

        Raises DataError.
        """
        pictures = self._pictures(places, self.index.take(places)) if self._raw else {}
        index = self.index[places]  # after the pictures, in whose place others may stand
        return self.samples[places], gather_rows(self._prepared, self._rows, index) | pictures

    def _pictures(self, places: np.ndarray, index: np.ndarray) -> dict[str, np.ndarray]:
        raw = {name: values[index] for name, values in self._raw.items()}
        given = {part.name: LateValues.of(part.field, part.columns, raw) for part in self._prepared.late}
        with as_data_error(self._prepared):
            try:
                return self._prepared.pictures(given, self.samples[places], self.window.epoch)
            except BadSampleError as error:
                self._skip(error, places)
        return self._pictures(places, self.index.take(places))

    def _skip(self, error: BadSampleError, places: np.ndarray) -> None:
        """Use the next sample of the window instead of one whose image is broken. Raises the error if none is left."""
        prepared, size = self._prepared, self.window.size
        if prepared.skips is None:
            raise error
        place = int(places[prepared.rows.at(self.samples[places]) == error.row][0])
        tried = self._tried[place] = self._tried.get(place, 0) + 1
        if tried >= size:
            raise error
        row = int(prepared.rows.at(self.samples[[(place + tried - 1) % size]])[0])
        LOG.write(Skipped(prepared.name, prepared.table.place(row), str(error.cause)))
        self.index[place] = self._first_index[(place + tried) % size]


def gather_rows(prepared: PreparedSet, rows: Mapping[str, np.ndarray], index: np.ndarray) -> dict[str, np.ndarray]:
    """Return (N, *sample shape) by field of `rows`, for samples with these first rows.

    It uses NumPy, which is several times faster than `index_select` on short rows, and runs in one thread.
    """
    windows, found = prepared.windows, {}
    for part in prepared.parts:
        if part.name in rows:
            own, places = rows[part.name], index
            if windows is not None:
                cut = range(windows.length)[part.cut]
                if isinstance(cut, range) and cut.step == 1 and len(cut) >= _LONG:
                    found[part.name] = _runs(own, index + cut.start, len(cut))
                    continue
                places = index + cut if isinstance(cut, int) else index[:, None] + np.asarray(cut)
            found[part.name] = own.take(places, axis=0)
    return found


def _runs(rows: np.ndarray, begins: np.ndarray, length: int) -> np.ndarray:
    """Return (N, length, *row shape): consecutive rows from each of `begins` on, copied as a whole, in a third of the
    time of single rows.
    """
    shape = len(rows) - length + 1, length, *rows.shape[1:]
    strides = rows.strides[0], *rows.strides
    every = np.lib.stride_tricks.as_strided(rows, shape, strides, writeable=False)
    return np.asarray(every[begins])


def _kind(prepared: PreparedSet, part: FieldReader) -> np.dtype[np.generic]:
    """Return the dtype of a field's rows in a window: tokens are as narrow as in a set in memory."""
    return storage_dtype(part, len(prepared.rows))


def _of_pieces(pieces: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return int64: the numbers of the samples of all pieces (first, count)."""
    return np.concatenate([np.arange(first, first + count) for first, count in pieces])


@dataclass(frozen=True, slots=True, eq=False)
class _Stretch:
    """Rows of a piece, with `count` samples from `first` on."""

    rows: slice | np.ndarray
    num_rows: int
    first: int
    count: int
    windows: Windows | None

    @classmethod
    def of(cls, prepared: PreparedSet, piece: BlockPiece) -> _Stretch:
        begin, stop, windows = piece.first, piece.first + piece.count, prepared.windows
        if windows is not None:
            begin, last = windows.starts(np.asarray([begin, stop - 1])).tolist()
            stop = last + windows.length
        return cls(prepared.rows.between(begin, stop), stop - begin, piece.first, piece.count, windows)

    def starts(self) -> np.ndarray:
        """Return the first row of each sample, counted from the first row of the piece."""
        if self.windows is None:
            return np.arange(self.count)
        found = self.windows.starts(np.arange(self.first, self.first + self.count))
        return np.asarray(found - found[0])


@dataclass(frozen=True, slots=True, eq=False)
class RankNeeds:
    """Data that a rank reads from `position` of `epoch` to the end of `last_epoch`: streams, and `tail`, its positions
    in the last, partial batch of each epoch.
    """

    streams: tuple[int, ...]
    tail: np.ndarray
    epoch: int
    position: int
    last_epoch: int

    def has(self, order: RolledOrder, name: WindowName) -> bool:
        layout = order.epoch(name[0])
        return layout.window(name[1]).stream in self.streams or name[1] in self._last(order, layout)

    def windows(self, order: RolledOrder) -> Iterator[WindowName]:
        """Yield the windows, by the position of the sequence that first needs one."""
        for epoch in range(self.epoch, self.last_epoch + 1):
            layout = order.epoch(epoch)
            own = [np.arange(*layout.windows_of[stream : stream + 2]) for stream in self.streams]
            numbers = np.unique(np.concatenate([*own, self._last(order, layout)]).astype(np.int64))
            streams = np.searchsorted(layout.windows_of, numbers, side="right") - 1
            begin = order.stretches[streams]
            firsts = order.first_position(streams, layout.cuts[numbers] - begin)
            ends = order.first_position(streams, layout.cuts[numbers + 1] - begin)
            is_left = ends > self.position if epoch == self.epoch else np.ones(len(numbers), bool)
            for number in numbers[is_left][np.argsort(firsts[is_left], kind="stable")].tolist():
                yield epoch, number

    def _last(self, order: RolledOrder, layout: EpochLayout) -> np.ndarray:
        return np.unique(layout.number_of(order.places(self.tail)))


class _Apart(NamedTuple):
    """Values of samples of a batch that are gathered separately, and their places in it."""

    places: np.ndarray
    values: dict[str, np.ndarray]


class WindowsAhead:
    """Windows that a rank needs of a block-shuffled set, from a step on, in the order of use. `close` ends the
    threads.
    """

    def __init__(self, prepared: PreparedSet, order: RolledOrder, needs: RankNeeds) -> None:
        self._order = order
        self._needs = needs
        self._prepared = prepared
        self._dtypes = {part.name: dtype_of(part.sample) for part in prepared.parts}
        per_window = order.window * order.num_samples / order.num_blocks
        in_use = len(needs.streams) * per_window
        room = int(in_use * (1 + _AHEAD))
        rows_each = 1 if prepared.windows is None else prepared.windows.stride
        kinds = {part.name: (part.row.shape, _kind(prepared, part)) for part in prepared.parts if not prepared.late}
        # windows dropped in one gather, at most one of each stream, are still read while others are made
        self._arena = Arena(int(rows_each * (room + in_use + _SPARE * per_window)) + 1, kinds)
        self._done: list[HeldWindow] = []  # dropped in this gather: may be read until it ends
        self._held: Prefetcher[WindowName, HeldWindow] = Prefetcher(
            lambda name: HeldWindow(prepared, order, name, self._arena),
            needs.windows(order),
            lambda name: order.epoch(name[0]).window(name[1]).size,
            room,
            max(1, min(_THREADS, torch.get_num_threads())),
        )
        self._current: dict[int, WindowName] = {}

    def gather(self, of_epoch: int | None, positions: np.ndarray) -> Taken:
        """Return the samples at these positions of an epoch, and their tensors. Positions must increase. Raises
        DataError.
        """
        return self.at(of_epoch or 0, self._order.places(positions))

    def of_batches(self, epoch: int, positions: np.ndarray, count: int) -> Taken:
        """Return the samples of slots of a full batch, and of the same slots in the next full batches, `count`
        in all.
        """
        firsts, length = self._order.runs_of_batch(positions)
        if not length:
            return self.at(epoch, self._order.places_of_batches(positions, count))
        return self._of_streams(epoch, firsts, length, count)

    def _of_streams(self, epoch: int, firsts: np.ndarray, length: int, count: int) -> Taken:
        """Return batches that take `length` samples of each of some streams, from these places of the layout on."""
        layout, size = self._order.epoch(epoch), count * length
        samples, index = np.empty((2, count, len(firsts), length), np.int64)
        apart: list[_Apart] = []
        for row, first in enumerate(firsts.tolist()):
            parts: list[tuple[np.ndarray, np.ndarray]] = []
            done = 0
            while done < size:
                number = int(layout.number_of(np.asarray(first + done)))
                stop = min(size, int(layout.cuts[number + 1]) - first)
                if (window := self._together(epoch, number)) is not None:
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
        """Return the samples at places in the layout of the epoch, and their tensors."""
        layout = self._order.epoch(epoch)
        runs, numbers = Runs.of(places).cut(layout.cuts[:-1])
        samples, index = np.zeros((2, len(places)), np.int64)
        apart: list[_Apart] = []
        for number, mine in runs.by(numbers):
            if (window := self._together(epoch, number)) is not None:
                inside = mine.numbers(window.window.start)
                mine.put(samples, window.samples[inside])
                mine.put(index, window.index[inside])
            else:
                found = self._apart(epoch, number, mine.list_numbers())
                mine.put(samples, found[0])
                apart.append(_Apart(mine.list_places(), found[1]))
        return samples, self._gather_tensors(index, apart)

    def _gather_tensors(self, index: np.ndarray, apart: Sequence[_Apart]) -> dict[str, torch.Tensor]:
        """Return the tensors of samples with these rows in the arena; those in `apart` have their own values."""
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
        wide = {part.name: values[part.name].astype(part.storage, copy=False) for part in parts}  # by this thread
        return {name: torch.from_numpy(array).to(self._dtypes[name]) for name, array in wide.items()}

    def _together(self, epoch: int, number: int) -> HeldWindow | None:
        """Return the window, if its samples can be gathered together with those of others."""
        window = self._window(epoch, number)
        return None if window is None or window.is_apart else window

    def _window(self, epoch: int, number: int) -> HeldWindow | None:
        """Return the window; None if it belongs to another rank."""
        return self._take((epoch, number)) if self._needs.has(self._order, (epoch, number)) else None

    def _apart(self, epoch: int, number: int, places: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        if (window := self._window(epoch, number)) is not None:
            return window.gather(places - window.window.start)
        samples = self._order.epoch(epoch).samples(places)  # padding: a row of the batch that another rank reads
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
        return self._order.epoch(name[0]).window(name[1]).stream

    def close(self) -> None:
        self._held.close()
        self._done.clear()
