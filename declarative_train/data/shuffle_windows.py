"""Shuffle windows in memory. The rows of each window are read and converted once, and are copied to batches by a few
large copies."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from declarative_train.components.data import Table
from declarative_train.data.field_reader import BadSampleError, FieldReader, column_names, failing, in_row, values_of
from declarative_train.data.lazy_fields import LazyValues
from declarative_train.data.prepared_set import PreparedSet, storage_dtype
from declarative_train.data.rows import Windows
from declarative_train.data.shuffle import BlockRange, BlockShuffle, ShuffleWindow
from declarative_train.data.skipping import LOG, Skipped
from declarative_train.data.tensor_sets import as_data_error

_SPARSE = 8  # rows are read as one slice if at least one in so many is wanted
WindowName = tuple[int, int]
"""Epoch of a window, and its index in that epoch."""
_LONG = 8  # from this number of rows on, the rows of a sample are copied together


class Arena:
    """Memory for the rows of several shuffle windows: one array for each field, so that all rows of a batch are copied
    from the same array. Thread-safe.

    `rows`: {field: array (capacity, *row shape)}. The free rows with the lowest indices are used first: the first use
    of a page of memory is slow, and a page that is never used costs nothing.
    """

    def __init__(self, capacity: int, kinds: Mapping[str, tuple[tuple[int, ...], np.dtype[np.generic]]]) -> None:
        self.rows = {name: np.empty((capacity, *shape), dtype) for name, (shape, dtype) in kinds.items()}
        self._free = [(0, capacity)]  # free ranges (first, end), ascending; adjacent ranges are merged
        self._lock = threading.Lock()

    def take(self, count: int) -> int | None:
        """Reserve `count` consecutive rows and return the index of the first. Return None if no range of free rows is
        that long. The content of the rows is undefined."""
        with self._lock:
            for place, (first, end) in enumerate(self._free):
                if end - first >= count:
                    self._free[place : place + 1] = [(first + count, end)] if end - first > count else []
                    return first
        return None

    def give(self, first: int, count: int) -> None:
        """Free the `count` rows from index `first` on, which `take` reserved. They must not be read afterwards."""
        with self._lock:
            stretches = sorted([*self._free, (first, first + count)])
            self._free = stretches[:1]
            for begin, end in stretches[1:]:
                if begin == self._free[-1][1]:
                    self._free[-1] = (self._free[-1][0], end)
                else:
                    self._free.append((begin, end))


class Runs(NamedTuple):
    """Batch as R ranges of rows that are consecutive in the batch, and also in the source from which it is made, such
    as a block layout.

    The arrays (R,) are in the order of the batch. `places`: index in the batch of the first row of each range.
    `firsts`: index in the source of this row. `lengths`: how many rows each range has.
    """

    places: np.ndarray
    firsts: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, numbers: np.ndarray) -> Runs:
        """Divide the rows of a batch into runs: ranges of rows that are consecutive in the source too. `numbers` (N,)
        int64: index in the source of each row of the batch."""
        places = np.concatenate([np.zeros(1, np.int64), np.flatnonzero(np.diff(numbers) != 1) + 1])
        return cls(places, numbers[places], np.diff(places, append=len(numbers)))

    def cut(self, borders: np.ndarray) -> tuple[Runs, np.ndarray]:
        """Cut each run wherever a border is inside of it. Return the new runs, and for each of them the index of the
        range between two borders that contains it. `borders`: ascending indices in the source. The first border is not
        after the start of any run."""
        last = np.searchsorted(borders, self.firsts + self.lengths - 1, side="right") - 1
        of = np.searchsorted(borders, self.firsts, side="right") - 1
        if (of == last).all():
            return self, of
        counts = last - of + 1
        run = np.repeat(np.arange(len(of)), counts)
        of = np.arange(len(run)) - np.repeat(np.cumsum(counts) - counts, counts) + of[run]
        begins = np.maximum(self.firsts[run], borders[of])
        stops = np.minimum((self.firsts + self.lengths)[run], np.append(borders, np.iinfo(np.int64).max)[of + 1])
        return Runs(self.places[run] + begins - self.firsts[run], begins, stops - begins), of

    def by(self, owners: np.ndarray) -> Iterator[tuple[int, Runs]]:
        """Group the runs by their owners, such as windows. Yield (index of the owner, its runs). `owners` (R,): index
        of the owner of each run."""
        order = np.argsort(owners, kind="stable")
        for mine in np.split(order, np.flatnonzero(np.diff(owners[order])) + 1):
            yield int(owners[mine[0]]), Runs(self.places[mine], self.firsts[mine], self.lengths[mine])

    def numbers(self, first: int = 0) -> slice | np.ndarray:
        """Return the indices of the rows in the runs, counted from row `first` of the source. The result is a slice if
        they are consecutive, else an array."""
        begins = self.firsts - first
        if bool((begins[1:] == begins[:-1] + self.lengths[:-1]).all()):
            return slice(int(begins[0]), int(begins[-1] + self.lengths[-1]))
        return _count_from(begins, self.lengths)

    def list_numbers(self) -> np.ndarray:
        return _count_from(self.firsts, self.lengths)

    def list_places(self) -> np.ndarray:
        """Return the index in the batch of every row of every run, in the order of the runs."""
        return _count_from(self.places, self.lengths)

    def put(self, found: np.ndarray, rows: np.ndarray) -> None:
        """Copy `rows`, the values of all runs one after the other, to the places of the runs in the batch array
        `found`."""
        lengths, count, done = self.lengths, len(self.lengths), 0
        # the first run, or the last, may be shorter than the others: the end of a window cuts it
        begin = int(count > 1 and lengths[0] != lengths[1])
        stop = count - int(count > 1 and lengths[-1] != lengths[-2])
        for each in (slice(0, begin), slice(begin, stop), slice(max(begin, stop), count)):
            if size := int(lengths[each].sum()):
                _put(found, self.places[each], lengths[each], rows[done : done + size])
            done += size


def _put(found: np.ndarray, places: np.ndarray, lengths: np.ndarray, rows: np.ndarray) -> None:
    count, length, first = len(places), int(lengths[0]), int(places[0])
    step = int(places[1]) - first if count > 1 else length
    if bool((lengths == length).all()) and bool((np.diff(places) == step).all()):
        strides = (step * found.strides[0], *found.strides)
        target = np.lib.stride_tricks.as_strided(found[first:], (count, length, *found.shape[1:]), strides)
        target[...] = rows.reshape(count, length, *rows.shape[1:])
    else:
        found[_count_from(places, lengths)] = rows


def _count_from(begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return ranges of consecutive numbers as one array: for each i, the `lengths[i]` numbers from `begins[i]` on."""
    before = np.cumsum(lengths) - lengths
    found: np.ndarray = np.arange(int(lengths.sum())) + np.repeat(begins - before, lengths)
    return found


def convert_good(
    prepared: PreparedSet, numbers: slice | np.ndarray, parts: Sequence[FieldReader], lazy: Sequence[FieldReader]
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], np.ndarray | None]:
    """Convert the rows `numbers` of the table, and leave out the bad ones. Return (values, raw, chosen). Raises
    BadSampleError and SourceError.

    `values`: for the fields `parts`, a dict from field to its values in the good rows. `raw`: for the fields `lazy`, a
    dict from column to its content in the good rows. `chosen`: for each of the rows `numbers`, the index of the good
    row to use, which for a bad row is the next one; None if no row is bad.
    """
    table = prepared.table
    # one read for all columns: the files of a sample are next to each other in an archive
    read = read_once(table, column_names([*parts, *lazy]), numbers)
    raw = {name: read[name] for name in column_names(lazy)}
    try:
        return values_of(read, numbers, parts), raw, None
    except BadSampleError:
        if prepared.skips is None or prepared.windows is not None:
            raise
    rows = np.arange(numbers.start, numbers.stop) if isinstance(numbers, slice) else numbers
    bad = list(failing(read, rows, parts))
    good = np.flatnonzero(~np.isin(rows, [each.row for each in bad]))
    if not len(good):
        raise bad[0]
    LOG.write(*(Skipped(prepared.name, table.place(each.row), str(each.cause)) for each in bad))
    values = values_of({name: each[good] for name, each in read.items()}, rows[good], parts)
    stands = np.searchsorted(good, np.arange(len(rows))) % len(good)
    return values, {name: each[good] for name, each in raw.items()}, stands


def convert_into(
    prepared: PreparedSet,
    numbers: slice | np.ndarray,
    parts: Mapping[FieldReader, np.ndarray],
    lazy: Sequence[FieldReader],
) -> dict[str, np.ndarray]:
    """Convert rows of the table, and write the values of each field into its array in `parts`. `numbers`: indices of
    the rows. Return {column: content} for the columns of the fields `lazy`, which are not converted. Raises
    BadSampleError and SourceError."""
    read = read_once(prepared.table, column_names([*parts, *lazy]), numbers)
    for part, out in parts.items():
        with in_row(part, numbers):
            part.values_into(read, out)
    return {name: read[name] for name in column_names(lazy)}


def read_once(table: Table, columns: Sequence[str], numbers: slice | np.ndarray) -> dict[str, np.ndarray]:
    """Read the rows `numbers` of the table, which must ascend and are not read again soon. Return a dict from column to
    content. Raises SourceError.

    If the gaps between the rows are small, one slice with all of them is read, without a cache. Otherwise `Table.read`
    reads the rows; it has a cache.
    """
    if isinstance(numbers, slice):
        return table.read_once(columns, numbers)
    first, last = int(numbers[0]), int(numbers[-1]) + 1
    if last - first > _SPARSE * len(numbers):
        return table.read(columns, numbers)
    return {name: values[numbers - first] for name, values in table.read_once(columns, slice(first, last)).items()}


class HeldWindow:
    """Shuffle window in memory: the converted rows of its samples (of images, only the columns with their paths), in
    the order of the file.

    samples  (size,) int64: index of each sample in the set. Samples are in the random order in which they are used
    index    (size,) int64: index of each sample's first row in the arena (the common memory of all windows) or, if the
             arena was full, in arrays of this window
    """

    def __init__(self, prepared: PreparedSet, order: BlockShuffle, name: WindowName, arena: Arena) -> None:
        """Read the samples of one window. `name`: the epoch, and the index of the window in it. `arena`: memory for the
        rows, if it has room. Raises DataError."""
        layout = order.epoch_blocks(name[0])
        self.window: ShuffleWindow = layout.window(name[1])
        self._prepared = prepared
        self._arena = arena
        self._place: int | None = None
        self._num_rows = 0
        pieces = [_Stretch.of(prepared, piece) for piece in layout.block_ranges(self.window)]
        parts = [part for part in prepared.parts if not part.field.is_lazy]
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
        """True if the rows of this window are not in the arena, the common memory of windows, because it was full or a
        field is lazy. The samples are then gathered separately from those of other windows."""
        return self._place is None

    def _room(self, parts: Sequence[FieldReader], num_rows: int) -> dict[FieldReader, np.ndarray]:
        """Return a dict from field to an array for `num_rows` rows. It is a slice of the shared arena, or a new array
        if the arena is full or a field is lazy."""
        self._num_rows, self._place = num_rows, None if self._prepared.lazy else self._arena.take(num_rows)
        if self._place is None:
            own = {part: np.empty((num_rows, *part.row.shape), window_dtype(self._prepared, part)) for part in parts}
            self._rows = {part.name: array for part, array in own.items()}
            return own
        self._rows = self._arena.rows
        return {part: self._rows[part.name][self._place : self._place + num_rows] for part in parts}

    def _read(self, pieces: Sequence[_Stretch], parts: Sequence[FieldReader]) -> np.ndarray | None:
        """Read the rows of all `pieces` into memory, one piece after the other. Return the index of each sample's first
        row among them; None if each sample is a single row."""
        offsets = np.cumsum([0, *(each.num_rows for each in pieces)]).tolist()
        rows = self._room(parts, offsets[-1])
        raw = [
            convert_into(
                self._prepared,
                piece.rows,
                {part: array[begin:end] for part, array in rows.items()},
                self._prepared.lazy,
            )
            for piece, (begin, end) in zip(pieces, pairwise(offsets), strict=True)
        ]
        self._raw = {name: np.concatenate([each[name] for each in raw]) for name in raw[0]}
        if self._prepared.windows is None:
            return None
        return np.concatenate([piece.starts() + offset for piece, offset in zip(pieces, offsets, strict=False)])

    def _read_good(self, pieces: Sequence[_Stretch], parts: Sequence[FieldReader]) -> np.ndarray:
        """Read the good rows of all `pieces` of the window into memory. Return, for each sample, the index of its first
        row among these rows. If that row is bad, the index is that of the next good row of the same piece."""
        starts, offset = [], 0
        values: list[dict[str, np.ndarray]] = []
        raws: list[dict[str, np.ndarray]] = []
        for piece in pieces:
            made, raw, stands = convert_good(self._prepared, piece.rows, parts, self._prepared.lazy)
            starts.append((piece.starts() if stands is None else stands[piece.starts()]) + offset)
            offset += piece.num_rows if stands is None else int(stands.max()) + 1
            values.append(made)
            raws.append(raw)
        for part, room in self._room(parts, offset).items():
            # "unsafe" allows the conversion to smaller integers
            np.concatenate([each[part.name] for each in values], out=room, casting="unsafe")
        self._raw = {name: np.concatenate([each[name] for each in raws]) for name in raws[0]}
        return np.concatenate(starts)

    def release(self) -> None:
        """Give the memory of the window back to the arena. Its rows must not be read afterwards."""
        if self._place is not None:
            self._arena.give(self._place, self._num_rows)

    def gather(self, places: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the samples at `places`, which are indices within the window: their indices in the set, and a dict
        from field name to values (N, *sample shape). Raises DataError."""
        lazy = self._decode_lazy(places, self.index.take(places)) if self._raw else {}
        index = self.index[places]  # after decoding, which may have replaced broken images
        return self.samples[places], gather_rows(self._prepared, self._rows, index) | lazy

    def _decode_lazy(self, places: np.ndarray, index: np.ndarray) -> dict[str, np.ndarray]:
        raw = {name: values[index] for name, values in self._raw.items()}
        given = {part.name: LazyValues.of(part.field, part.columns, raw) for part in self._prepared.lazy}
        with as_data_error(self._prepared):
            try:
                return self._prepared.decode_lazy(given, self.samples[places], self.window.epoch)
            except BadSampleError as error:
                self._skip(error, places)
        return self._decode_lazy(places, self.index.take(places))

    def _skip(self, error: BadSampleError, places: np.ndarray) -> None:
        """Replace the sample with a broken image that `error` names, from now on, by the next sample of the window that
        was not tried for it. `places`: the samples that are being read, as indices within the window. Raises `error` if
        every sample was tried, or if the recipe does not skip bad rows."""
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
    """Return a dict from field name to values (N, *sample shape), for N samples.

    `rows`: dict from field name to all rows of the field. `index` (N,): the first row of each sample. NumPy is used
    because it copies short rows several times faster than torch's `index_select` with one thread.
    """
    windows, found = prepared.windows, {}
    for part in prepared.parts:
        if part.name in rows:
            own, places = rows[part.name], index
            if windows is not None:
                cut = range(windows.length)[part.cut]
                if isinstance(cut, range) and cut.step == 1 and len(cut) >= _LONG:
                    found[part.name] = _gather_slices(own, index + cut.start, len(cut))
                    continue
                places = index + cut if isinstance(cut, int) else index[:, None] + np.asarray(cut)
            found[part.name] = own.take(places, axis=0)
    return found


def _gather_slices(rows: np.ndarray, begins: np.ndarray, length: int) -> np.ndarray:
    """Return (N, length, *row shape): for each of the N entries of `begins`, the `length` rows from there on. Whole
    slices are copied, which takes a third of the time of single rows."""
    shape = len(rows) - length + 1, length, *rows.shape[1:]
    strides = rows.strides[0], *rows.strides
    every = np.lib.stride_tricks.as_strided(rows, shape, strides, writeable=False)
    return np.asarray(every[begins])


def window_dtype(prepared: PreparedSet, part: FieldReader) -> np.dtype[np.generic]:
    """Return the numpy dtype in which a window stores a field: the same as for a set in memory."""
    return storage_dtype(part, len(prepared.rows))


def _of_pieces(pieces: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return the indices in the set of all samples of `pieces`, as int64. A piece is a range of samples: (index of the
    first, how many)."""
    return np.concatenate([np.arange(first, first + count) for first, count in pieces])


@dataclass(frozen=True, slots=True, eq=False)
class _Stretch:
    """Consecutive samples of a window that begin in one block. `rows`, `num_rows`: the rows of the table that the
    samples contain, and their number. `first`: index in the set of the first sample. `count`: how many samples there
    are."""

    rows: slice | np.ndarray
    num_rows: int
    first: int
    count: int
    windows: Windows | None

    @classmethod
    def of(cls, prepared: PreparedSet, piece: BlockRange) -> _Stretch:
        begin, stop, windows = piece.first, piece.first + piece.count, prepared.windows
        if windows is not None:
            begin, last = windows.starts(np.asarray([begin, stop - 1])).tolist()
            stop = last + windows.length
        return cls(prepared.rows.between(begin, stop), stop - begin, piece.first, piece.count, windows)

    def starts(self) -> np.ndarray:
        """Return, for each sample, the index of its first row in `rows`."""
        if self.windows is None:
            return np.arange(self.count)
        found = self.windows.starts(np.arange(self.first, self.first + self.count))
        return np.asarray(found - found[0])
