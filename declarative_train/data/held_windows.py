"""Windows of a rolled set, each read and converted once, ahead of its use, by threads; batches are gathered from them.

A window is dropped when its stream goes on to the next one. How far the threads are ahead is bounded by samples in
memory, so that a run needs as much after a thousand windows as after the first.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar

import numpy as np
import torch

from declarative_train.components.datasets.current_file import doing_of, turn_to
from declarative_train.data.batch import Taken
from declarative_train.data.neighbours import convert_good, convert_into
from declarative_train.data.parts import Part
from declarative_train.data.pictures import Given
from declarative_train.data.prepare import BadSampleError, Prepared
from declarative_train.data.rolling import EpochLayout, Piece, RolledOrder, Window
from declarative_train.data.sets import dtype_of, said
from declarative_train.data.skipping import LOG, Skipped
from declarative_train.data.stretches import Memory, Runs
from declarative_train.data.waiting import CLOSE_S, LOOK_S, Wait

_AHEAD = 0.25  # of the samples in use, the threads may hold so many more ready
_SPARE = 4  # windows whose memory may lie ready for the next ones
_THREADS = 4

T = TypeVar("T")
Name = tuple[int, int]
"""Of a window: its epoch and number."""


class HeldWindow:
    """The samples of a window: the rows that its pieces have, field by field, or what pictures are made of. `_index`:
    the row that each sample begins with, by its place in the window. What a stream takes next lies side by side there,
    and anywhere among the rows: to move these once is less than to lay them out first."""

    def __init__(self, prepared: Prepared, order: RolledOrder, name: Name, memory: Memory) -> None:
        """Raises DataError."""
        layout = order.epoch(name[0])
        self.window: Window = layout.window(name[1])
        self._prepared = prepared
        pieces = [_Stretch.of(prepared, piece) for piece in layout.pieces(self.window)]
        parts = [part for part in prepared.parts if not part.field.reads_late]
        with said(prepared):
            starts = (
                self._read(pieces, parts, memory) if prepared.skips is None else self._read_good(pieces, parts, memory)
            )
        inner = self.window.order()
        self.samples = np.concatenate([np.arange(each.first, each.first + len(each.starts)) for each in pieces]).take(
            inner
        )
        is_plain = prepared.windows is None and prepared.skips is None  # row k is sample k
        self._index = inner if is_plain else starts.take(inner)
        self._first_index = self._index if prepared.skips is None else self._index.copy()
        self._tried: dict[int, int] = {}

    def _read(self, pieces: Sequence[_Stretch], parts: Sequence[Part], memory: Memory) -> np.ndarray:
        """The row that each sample begins with, as the pieces have them."""
        offsets = np.cumsum([0, *(each.num_rows for each in pieces)]).tolist()
        rows = {part: memory.array((offsets[-1], *part.row.shape), part.storage) for part in parts}
        self._rows = {part.name: array for part, array in rows.items()}
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
        return np.concatenate([piece.starts + offset for piece, offset in zip(pieces, offsets, strict=False)])

    def _read_good(self, pieces: Sequence[_Stretch], parts: Sequence[Part], memory: Memory) -> np.ndarray:
        """The same without bad rows: for each of those the next good one of its piece."""
        starts, offset = [], 0
        values: list[dict[str, np.ndarray]] = []
        raws: list[dict[str, np.ndarray]] = []
        for piece in pieces:
            made, raw, stands = convert_good(self._prepared, piece.rows, parts, self._prepared.late)
            starts.append((piece.starts if stands is None else stands[piece.starts]) + offset)
            offset += piece.num_rows if stands is None else int(stands.max()) + 1
            values.append(made)
            raws.append(raw)
        self._rows = {part.name: memory.joined([each[part.name] for each in values]) for part in parts}
        self._raw = {name: np.concatenate([each[name] for each in raws]) for name in raws[0]}
        return np.concatenate(starts)

    def release(self, memory: Memory) -> None:
        """Nothing of it is read any more."""
        for rows in self._rows.values():
            memory.give(rows)

    def gather(self, places: slice | np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The numbers of the samples at these places of the window, and (N, *sample shape) by field. Raises
        DataError."""
        pictures = {}
        if self._raw:
            listed = np.arange(places.start, places.stop) if isinstance(places, slice) else places
            pictures = self._pictures(listed, self._index.take(listed))
        index = self._index[places]  # after the pictures, in whose place others may stand
        parts = [part for part in self._prepared.parts if part.name in self._rows]
        return self.samples[places], {part.name: self._taken(part, index) for part in parts} | pictures

    def _taken(self, part: Part, index: np.ndarray) -> np.ndarray:
        """By NumPy, which is several times as fast as `index_select` on short rows, and takes one thread."""
        windows = self._prepared.windows
        if windows is None:
            return self._rows[part.name].take(index, axis=0)
        if isinstance(part.cut, int):
            return self._rows[part.name].take(index + range(windows.length)[part.cut], axis=0)
        rows = index[:, None] + np.arange(windows.length)[part.cut]
        return self._rows[part.name].take(rows, axis=0)

    def _pictures(self, places: np.ndarray, index: np.ndarray) -> dict[str, np.ndarray]:
        raw = {name: values[index] for name, values in self._raw.items()}
        given = {part.name: Given.of(part.field, part.columns, raw) for part in self._prepared.late}
        with said(self._prepared):
            try:
                return self._prepared.pictures(given, self.samples[places], self.window.epoch)
            except BadSampleError as error:
                self._skip(error, places)
        return self._pictures(places, self._index.take(places))

    def _skip(self, error: BadSampleError, places: np.ndarray) -> None:
        """The next sample of the window stands in the place of one whose picture is broken. Raises the error where
        none is left."""
        prepared, size = self._prepared, self.window.size
        if prepared.skips is None:
            raise error
        place = int(places[prepared.rows.at(self.samples[places]) == error.row][0])
        tried = self._tried[place] = self._tried.get(place, 0) + 1
        if tried >= size:
            raise error
        row = int(prepared.rows.at(self.samples[[(place + tried - 1) % size]])[0])
        LOG.tell(Skipped(prepared.name, prepared.table.place(row), str(error.cause)))
        self._index[place] = self._first_index[(place + tried) % size]


@dataclass(frozen=True, slots=True, eq=False)
class _Stretch:
    """Rows of a piece, its first sample, and the row, from the first of these on, that each sample begins with."""

    rows: slice | np.ndarray
    num_rows: int
    first: int
    starts: np.ndarray

    @classmethod
    def of(cls, prepared: Prepared, piece: Piece) -> _Stretch:
        first, windows = piece.first, prepared.windows
        starts, stop = np.arange(first, first + piece.count), first + piece.count
        if windows is not None:
            starts = windows.starts(starts)
            stop = int(starts[-1]) + windows.length
        begin = int(starts[0])
        return cls(prepared.rows.between(begin, stop), stop - begin, first, starts - begin)


@dataclass(frozen=True, slots=True, eq=False)
class Needs:
    """What a rank reads from `position` of `epoch` to the end of `last_epoch`: streams, and the positions that it has
    in the last, partial batch of each epoch."""

    streams: tuple[int, ...]
    tail: np.ndarray
    epoch: int
    position: int
    last_epoch: int

    def has(self, order: RolledOrder, name: Name) -> bool:
        layout = order.epoch(name[0])
        return layout.window(name[1]).stream in self.streams or name[1] in self._last(order, layout)

    def windows(self, order: RolledOrder) -> Iterator[Name]:
        """By the position of the sequence that first needs one."""
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


class WindowsAhead:
    """What a rank needs of a rolled set from a step on, in the order of its need. Close it to end its threads."""

    def __init__(self, prepared: Prepared, order: RolledOrder, needs: Needs) -> None:
        self._order = order
        self._needs = needs
        self._prepared = prepared
        self._dtypes = {part.name: dtype_of(part.sample) for part in prepared.parts}
        per_window = order.window * order.num_samples / order.num_blocks
        in_use = len(needs.streams) * per_window
        row_bytes = sum(part.storage.itemsize * part.row.num_elements for part in prepared.parts)
        self._memory = Memory(int(_SPARE * per_window * row_bytes))
        self._done: list[HeldWindow] = []  # that may be read in the gather that dropped them, and no longer
        self._held: Ahead[HeldWindow] = Ahead(
            lambda name: HeldWindow(prepared, order, name, self._memory),
            needs.windows(order),
            lambda name: order.epoch(name[0]).window(name[1]).size,
            int(in_use * (1 + _AHEAD)),
            max(1, min(_THREADS, torch.get_num_threads())),
        )
        self._current: dict[int, Name] = {}

    def gather(self, of_epoch: int | None, positions: np.ndarray) -> Taken:
        """The samples at these positions of an epoch, and their tensors. Positions do not go back. Raises DataError."""
        return self.at(of_epoch or 0, self._order.places(positions))

    def of_batches(self, epoch: int, positions: np.ndarray, count: int) -> Taken:
        """The same, of slots of a full batch and of those in the full batches behind it, `count` in all."""
        return self.at(epoch, self._order.places_of_batches(positions, count))

    def at(self, epoch: int, places: np.ndarray) -> Taken:
        """The same, at places in the layout of the epoch."""
        while self._done:
            self._done.pop().release(self._memory)
        layout = self._order.epoch(epoch)
        runs, numbers = Runs.of(places).cut(layout.cuts[:-1])
        parts, ids = self._prepared.parts, np.empty(len(places), np.int64)
        values = {part.name: np.empty((len(places), *part.sample.shape), part.storage) for part in parts}
        for number, mine in runs.by(numbers):
            samples, found = self._of_window(epoch, number, mine)
            mine.put(ids, samples)
            for name, rows in found.items():
                mine.put(values[name], rows)
        return ids, {name: torch.from_numpy(array).to(self._dtypes[name]) for name, array in values.items()}

    def _of_window(self, epoch: int, number: int, runs: Runs) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        layout = self._order.epoch(epoch)
        if self._needs.has(self._order, (epoch, number)):
            window = self._take((epoch, number))
            return window.gather(runs.numbers(window.window.start))
        ids = layout.samples(runs.listed())  # padding: a row of the batch that another rank reads
        with said(self._prepared):
            return ids, self._prepared.gather(ids, epoch=epoch)

    def _take(self, name: Name) -> HeldWindow:
        found = self._held.get(name)
        stream = found.window.stream
        before = self._current.get(stream)
        if before is not None and before < name:
            self._done += self._held.drop(lambda other: other < name and self._stream(other) == stream)
        self._current[stream] = name
        return found

    def _stream(self, name: Name) -> int:
        return self._order.epoch(name[0]).window(name[1]).stream

    def close(self) -> None:
        self._held.close()
        self._done.clear()
        self._memory.clear()


@dataclass(frozen=True, slots=True)
class _Failure:
    error: BaseException


class Ahead(Generic[T]):
    """What `make` makes of names, in their order, by threads that are ahead of who takes it: as long as no more than
    `room` is held (by `size_of`), but for one that is made while all others are in use."""

    def __init__(
        self, make: Callable[[Name], T], names: Iterator[Name], size_of: Callable[[Name], int], room: int, threads: int
    ) -> None:
        self._make = make
        self._names = names
        self._size_of = size_of
        self._room = room
        self._sizes: dict[Name, int] = {}  # of what is made or being made
        self._made: dict[Name, T | _Failure] = {}
        self._next: Name | None = next(names, None)
        self._taken: set[Name] = set()
        self._wanted: Name | None = None
        self._by: dict[Name, int] = {}  # the threads that make them
        self._is_closed = False
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._run, name=f"dtrain-window-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        while (name := self._claim()) is not None:
            try:
                made: T | _Failure = self._make(name)
            except BaseException as error:  # handed over: raised where the window is taken
                made = _Failure(error)
            with self._changed:
                self._made[name] = made
                self._by.pop(name, None)
                self._changed.notify_all()

    def _claim(self) -> Name | None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._next is None or self._has_room())
            name = self._next
            if self._is_closed or name is None:
                return None
            self._sizes[name] = self._size_of(name)
            self._by[name] = threading.get_ident()
            turn_to(None)
            self._next = next(self._names, None)
            return name

    def _has_room(self) -> bool:
        assert self._next is not None
        if self._wanted is not None and self._wanted not in self._sizes:
            return True
        if self._sizes.keys() <= self._taken:  # at least one is made while others are in use
            return True
        return sum(self._sizes.values()) + self._size_of(self._next) <= self._room

    def get(self, name: Name) -> T:
        """Waits until it is there; what is taken stays until it is dropped."""
        with self._changed:
            if name not in self._made:
                self._wanted = name
                self._changed.notify_all()
                wait = Wait(lambda: doing_of(self._by.get(name)))
                while not self._changed.wait_for(lambda: name in self._made or self._cannot_come(name), LOOK_S):
                    wait.look()
                self._wanted = None
            self._taken.add(name)
            self._changed.notify_all()
            found = self._made[name]
        if isinstance(found, _Failure):
            raise found.error
        return found

    def _cannot_come(self, name: Name) -> bool:
        return self._is_closed or (self._next is None and name not in self._sizes)

    def drop(self, is_done: Callable[[Name], bool]) -> list[T]:
        """What was made of these names."""
        with self._changed:
            done = [name for name in self._made if is_done(name)]
            found = [self._made.pop(name) for name in done]
            for name in done:
                del self._sizes[name]
                self._taken.discard(name)
            self._changed.notify_all()
        return [each for each in found if not isinstance(each, _Failure)]

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        until = time.monotonic() + CLOSE_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))  # one that a file does not answer is left behind
        self._made.clear()  # threads know this object and it them: it would stay until the next collection
        self._sizes.clear()
