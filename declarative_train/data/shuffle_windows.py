"""Shuffle windows in memory. A shuffle window is the samples of a few blocks of the table, which are shuffled together
(data/shuffle.py). Its rows are read and converted once, and are then copied to batches by a few large copies.

The rows of all windows are in one `RowBuffer`, which has a free list like a memory allocator. A batch is copied in
segments: a batch of the rows 7 8 9 3 4 of a window has the segments 7 8 9 and 3 4.
"""

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
from declarative_train.data.rows import RowWindows
from declarative_train.data.shuffle import BlockRange, BlockShuffle, ShuffleWindow
from declarative_train.data.skipping import LOG, Skipped
from declarative_train.data.tensor_sets import as_data_error

_SPARSE = 8  # rows are read as one slice if at least one in so many is wanted
WindowId = tuple[int, int]
"""Epoch of a shuffle window, and its index in that epoch."""
_LONG = 8  # from this number of rows on, the rows of a sample are copied together


class RowBuffer:
    """Memory for the rows of several shuffle windows: one array for each field, so that all rows of a batch are copied
    from the same array. Thread-safe.

    `rows`: {field: array (capacity, *row shape)}. The free rows with the lowest indices are used first: the first use
    of a page of memory is slow, and a page that is never used costs nothing.
    """

    def __init__(self, capacity: int, kinds: Mapping[str, tuple[tuple[int, ...], np.dtype[np.generic]]]) -> None:
        """`kinds`: {field: (shape of a row, dtype)}."""
        self.rows = {name: np.empty((capacity, *shape), dtype) for name, (shape, dtype) in kinds.items()}
        self._free = [(0, capacity)]  # free ranges (first, end), ascending; adjacent ranges are merged
        self._lock = threading.Lock()

    def allocate(self, count: int) -> int | None:
        """Reserve `count` consecutive rows and return the index of the first. Return None if no range of free rows is
        that long. The content of the rows is undefined."""
        with self._lock:
            for number, (first, end) in enumerate(self._free):
                if end - first >= count:
                    self._free[number : number + 1] = [(first + count, end)] if end - first > count else []
                    return first
        return None

    def free(self, first: int, count: int) -> None:
        """Free the `count` rows from index `first` on, which `allocate` reserved. They must not be read afterwards."""
        with self._lock:
            ranges = sorted([*self._free, (first, first + count)])
            self._free = ranges[:1]
            for begin, end in ranges[1:]:
                if begin == self._free[-1][1]:
                    self._free[-1] = (self._free[-1][0], end)
                else:
                    self._free.append((begin, end))


class Segments(NamedTuple):
    """Batch as R segments: ranges of rows that are consecutive in the batch, and also in the source from which they are
    copied. For example, a batch of the rows 7 8 9 3 4 of the source has `targets` (0, 3), `sources` (7, 3) and
    `lengths` (3, 2).

    The arrays (R,) are in the order of the batch. `targets`: index in the batch of the first row of each segment.
    `sources`: index in the source of this row. `lengths`: number of rows of each segment.
    """

    targets: np.ndarray
    sources: np.ndarray
    lengths: np.ndarray

    @classmethod
    def find(cls, rows: np.ndarray) -> Segments:
        """Divide a batch into the longest segments. `rows` (N,) int64: index in the source of each row of the batch."""
        targets = np.concatenate([np.zeros(1, np.int64), np.flatnonzero(np.diff(rows) != 1) + 1])
        return cls(targets, rows[targets], np.diff(targets, append=len(rows)))

    def split(self, borders: np.ndarray) -> tuple[Segments, np.ndarray]:
        """Split each segment wherever a border is inside of it. Return the new segments, and for each of them the index
        of the range between two borders that contains it. `borders`: ascending indices in the source. The first border
        is not after the start of any segment."""
        last = np.searchsorted(borders, self.sources + self.lengths - 1, side="right") - 1
        of = np.searchsorted(borders, self.sources, side="right") - 1
        if (of == last).all():
            return self, of
        counts = last - of + 1
        segment = np.repeat(np.arange(len(of)), counts)
        of = np.arange(len(segment)) - np.repeat(np.cumsum(counts) - counts, counts) + of[segment]
        begins = np.maximum(self.sources[segment], borders[of])
        stops = np.minimum((self.sources + self.lengths)[segment], np.append(borders, np.iinfo(np.int64).max)[of + 1])
        return Segments(self.targets[segment] + begins - self.sources[segment], begins, stops - begins), of

    def group(self, owners: np.ndarray) -> Iterator[tuple[int, Segments]]:
        """Group the segments by their owners, such as windows. Yield (index of the owner, its segments). `owners` (R,):
        index of the owner of each segment."""
        order = np.argsort(owners, kind="stable")
        for mine in np.split(order, np.flatnonzero(np.diff(owners[order])) + 1):
            yield int(owners[mine[0]]), Segments(self.targets[mine], self.sources[mine], self.lengths[mine])

    def source_rows(self, first: int = 0) -> slice | np.ndarray:
        """Return the index of each row of the segments, counted from row `first` of the source. The result is a slice
        if these rows are consecutive, else an array."""
        begins = self.sources - first
        if bool((begins[1:] == begins[:-1] + self.lengths[:-1]).all()):
            return slice(int(begins[0]), int(begins[-1] + self.lengths[-1]))
        return _count_from(begins, self.lengths)

    def list_sources(self) -> np.ndarray:
        """Return the index in the source of each row of the segments, as an array."""
        return _count_from(self.sources, self.lengths)

    def list_targets(self) -> np.ndarray:
        """Return the index in the batch of each row of the segments, as an array."""
        return _count_from(self.targets, self.lengths)

    def copy_to(self, batch: np.ndarray, rows: np.ndarray) -> None:
        """Copy `rows` into the array `batch`. `rows` has the rows of all segments, one segment after the other."""
        lengths, count, done = self.lengths, len(self.lengths), 0
        # the first segment, or the last, may be shorter than the others: the end of a window cuts it
        begin = int(count > 1 and lengths[0] != lengths[1])
        stop = count - int(count > 1 and lengths[-1] != lengths[-2])
        for each in (slice(0, begin), slice(begin, stop), slice(max(begin, stop), count)):
            if size := int(lengths[each].sum()):
                _copy_segments(batch, self.targets[each], lengths[each], rows[done : done + size])
            done += size


def _copy_segments(batch: np.ndarray, targets: np.ndarray, lengths: np.ndarray, rows: np.ndarray) -> None:
    """Copy `rows` into `batch`, in segments with these first rows in the batch and these lengths. One copy is enough if
    the segments have equal lengths and distances."""
    count, length, first = len(targets), int(lengths[0]), int(targets[0])
    step = int(targets[1]) - first if count > 1 else length
    if bool((lengths == length).all()) and bool((np.diff(targets) == step).all()):
        strides = (step * batch.strides[0], *batch.strides)
        target = np.lib.stride_tricks.as_strided(batch[first:], (count, length, *batch.shape[1:]), strides)
        target[...] = rows.reshape(count, length, *rows.shape[1:])
    else:
        batch[_count_from(targets, lengths)] = rows


def _count_from(begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return ranges of consecutive numbers as one array: for each i, the `lengths[i]` numbers from `begins[i]` on."""
    before = np.cumsum(lengths) - lengths
    found: np.ndarray = np.arange(int(lengths.sum())) + np.repeat(begins - before, lengths)
    return found


def convert_good(
    prepared: PreparedSet, rows: slice | np.ndarray, readers: Sequence[FieldReader]
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], np.ndarray | None]:
    """Convert these rows of the table, and leave out the bad ones. Return (values, raw, chosen). Raises BadSampleError
    and SourceError.

    `values`: for the fields of `readers`, a dict from field to its values in the good rows. `raw`: for the lazy fields
    (images), a dict from column to its content in the good rows. `chosen`: for each of `rows`, the index of the good
    row to use, which for a bad row is the next one; None if no row is bad.
    """
    table = prepared.table
    # one read for all columns: the files of a sample are next to each other in an archive
    read = read_once(table, column_names([*readers, *prepared.lazy]), rows)
    raw = {name: read[name] for name in column_names(prepared.lazy)}
    try:
        return values_of(read, rows, readers), raw, None
    except BadSampleError:
        if prepared.skips is None or prepared.windows is not None:
            raise
    listed = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
    bad = list(failing(read, listed, readers))
    good = np.flatnonzero(~np.isin(listed, [each.row for each in bad]))
    if not len(good):
        raise bad[0]
    LOG.write(*(Skipped(prepared.name, table.place(each.row), str(each.cause)) for each in bad))
    values = values_of({name: each[good] for name, each in read.items()}, listed[good], readers)
    chosen = np.searchsorted(good, np.arange(len(listed))) % len(good)
    return values, {name: each[good] for name, each in raw.items()}, chosen


def convert_into(
    prepared: PreparedSet, rows: slice | np.ndarray, targets: Mapping[FieldReader, np.ndarray]
) -> dict[str, np.ndarray]:
    """Convert these rows of the table, and write the values of each field into its array in `targets`. Return {column:
    content} for the columns of the lazy fields (images), which are not converted. Raises BadSampleError and
    SourceError."""
    read = read_once(prepared.table, column_names([*targets, *prepared.lazy]), rows)
    for reader, target in targets.items():
        with in_row(reader, rows):
            reader.values_into(read, target)
    return {name: read[name] for name in column_names(prepared.lazy)}


def read_once(table: Table, columns: Sequence[str], rows: slice | np.ndarray) -> dict[str, np.ndarray]:
    """Read these rows of the table, which must ascend and are not read again soon. Return a dict from column to
    content. Raises SourceError.

    If the gaps between the rows are small, one slice with all of them is read, without a cache. Otherwise `Table.read`
    reads the rows; it has a cache.
    """
    if isinstance(rows, slice):
        return table.read_once(columns, rows)
    first, last = int(rows[0]), int(rows[-1]) + 1
    if last - first > _SPARSE * len(rows):
        return table.read(columns, rows)
    return {name: values[rows - first] for name, values in table.read_once(columns, slice(first, last)).items()}


class LoadedWindow:
    """Shuffle window in memory: the converted rows of its samples (of images, only the columns with their paths), in
    the order of the file.

    samples     (size,) int64: index of each sample in the set, in the random order in which the samples are used
    first_rows  (size,) int64: index of the first row of each of these samples in the buffer that all windows share or,
                if the buffer was full, in arrays of this window
    """

    def __init__(self, prepared: PreparedSet, order: BlockShuffle, name: WindowId, buffer: RowBuffer) -> None:
        """Read the samples of one window. `name`: the epoch, and the index of the window in it. `buffer`: memory for
        the rows, if it has room. Raises DataError."""
        epoch = order.epoch_blocks(name[0])
        self.window: ShuffleWindow = epoch.window(name[1])
        self._prepared = prepared
        self._buffer = buffer
        self._start: int | None = None  # first row of the window in the buffer
        self._num_rows = 0
        blocks = [_BlockRows.of(prepared, each) for each in epoch.block_ranges(self.window)]
        readers = [reader for reader in prepared.readers if not reader.field.is_lazy]
        with as_data_error(prepared):
            rows = self._read(blocks, readers) if prepared.skips is None else self._read_good(blocks, readers)
        shuffle = self.window.order()
        self.samples = np.concatenate([np.arange(each.first, each.first + each.count) for each in blocks]).take(shuffle)
        self.first_rows = shuffle if rows is None else rows.take(shuffle)
        if self._start:
            self.first_rows += self._start
        self._rows_before_skips = self.first_rows if prepared.skips is None else self.first_rows.copy()
        self._tried: dict[int, int] = {}

    @property
    def is_in_buffer(self) -> bool:
        """True if the rows of this window are in the buffer that all windows share. False if the buffer was full or a
        field is lazy; the samples are then gathered separately from those of other windows."""
        return self._start is not None

    def _allocate(self, readers: Sequence[FieldReader], num_rows: int) -> dict[FieldReader, np.ndarray]:
        """Return a dict from field to an array for `num_rows` rows. It is a slice of the shared buffer, or a new array
        if the buffer is full or a field is lazy."""
        prepared = self._prepared
        self._num_rows, self._start = num_rows, None if prepared.lazy else self._buffer.allocate(num_rows)
        if self._start is None:
            dtypes = {each: storage_dtype(each, len(prepared.rows)) for each in readers}
            own = {each: np.empty((num_rows, *each.row.shape), dtype) for each, dtype in dtypes.items()}
            self._rows = {each.name: array for each, array in own.items()}
            return own
        self._rows = self._buffer.rows
        return {each: self._rows[each.name][self._start : self._start + num_rows] for each in readers}

    def _read(self, blocks: Sequence[_BlockRows], readers: Sequence[FieldReader]) -> np.ndarray | None:
        """Read the rows of all `blocks` into memory, one block after the other. Return the index of the first row of
        each sample among these rows; None if each sample is a single row."""
        ends = np.cumsum([0, *(each.num_rows for each in blocks)]).tolist()
        targets = self._allocate(readers, ends[-1])
        raw = [
            convert_into(self._prepared, block.rows, {each: array[begin:end] for each, array in targets.items()})
            for block, (begin, end) in zip(blocks, pairwise(ends), strict=True)
        ]
        self._raw = {name: np.concatenate([each[name] for each in raw]) for name in raw[0]}
        if self._prepared.windows is None:
            return None
        return np.concatenate([block.first_rows() + begin for block, begin in zip(blocks, ends, strict=False)])

    def _read_good(self, blocks: Sequence[_BlockRows], readers: Sequence[FieldReader]) -> np.ndarray:
        """Read the good rows of all `blocks` of the window into memory. Return, for each sample, the index of its first
        row among these rows. If that row is bad, the index is that of the next good row of the same block."""
        found, num_rows = [], 0
        values: list[dict[str, np.ndarray]] = []
        raws: list[dict[str, np.ndarray]] = []
        for block in blocks:
            made, raw, chosen = convert_good(self._prepared, block.rows, readers)
            found.append((block.first_rows() if chosen is None else chosen[block.first_rows()]) + num_rows)
            num_rows += block.num_rows if chosen is None else int(chosen.max()) + 1
            values.append(made)
            raws.append(raw)
        for reader, target in self._allocate(readers, num_rows).items():
            # "unsafe" allows the conversion to smaller integers
            np.concatenate([each[reader.name] for each in values], out=target, casting="unsafe")
        self._raw = {name: np.concatenate([each[name] for each in raws]) for name in raws[0]}
        return np.concatenate(found)

    def release(self) -> None:
        """Give the memory of the window back to the buffer. Its rows must not be read afterwards."""
        if self._start is not None:
            self._buffer.free(self._start, self._num_rows)

    def gather(self, indices: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the samples with these indices in the shuffled window: their indices in the set, and a dict from field
        name to values (N, *sample shape). Raises DataError."""
        lazy = self._decode_lazy(indices) if self._raw else {}
        rows = self.first_rows[indices]  # after decoding, which may have replaced broken images
        return self.samples[indices], gather_rows(self._prepared, self._rows, rows) | lazy

    def _decode_lazy(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        rows = self.first_rows.take(indices)
        raw = {name: values[rows] for name, values in self._raw.items()}
        given = {reader.name: LazyValues.of(reader.field, reader.columns, raw) for reader in self._prepared.lazy}
        with as_data_error(self._prepared):
            try:
                return self._prepared.decode_lazy(given, self.samples[indices], self.window.epoch)
            except BadSampleError as error:
                self._skip(error, indices)
        return self._decode_lazy(indices)

    def _skip(self, error: BadSampleError, indices: np.ndarray) -> None:
        """From now on, read another sample in place of the sample with a broken image that `error` names: the next
        one of the window that was not yet tried for it. `indices`: the samples that are being read, as indices in
        the shuffled window. Raises `error` if every sample was tried, or if the recipe does not skip bad rows."""
        prepared, size = self._prepared, self.window.size
        if prepared.skips is None:
            raise error
        bad = int(indices[prepared.rows.at(self.samples[indices]) == error.row][0])
        tried = self._tried[bad] = self._tried.get(bad, 0) + 1
        if tried >= size:
            raise error
        row = int(prepared.rows.at(self.samples[[(bad + tried - 1) % size]])[0])
        LOG.write(Skipped(prepared.name, prepared.table.place(row), str(error.cause)))
        self.first_rows[bad] = self._rows_before_skips[(bad + tried) % size]


def gather_rows(prepared: PreparedSet, rows: Mapping[str, np.ndarray], first_rows: np.ndarray) -> dict[str, np.ndarray]:
    """Return a dict from field name to values (N, *sample shape), for N samples.

    `rows`: dict from field name to an array with rows of the field. `first_rows` (N,): index in these arrays of the
    first row of each sample. NumPy is used because it copies short rows several times faster than torch's
    `index_select` with one thread.
    """
    windows, found = prepared.windows, {}
    for reader in prepared.readers:
        if reader.name in rows:
            own, index = rows[reader.name], first_rows
            if windows is not None:
                cut = range(windows.length)[reader.cut]
                if isinstance(cut, range) and cut.step == 1 and len(cut) >= _LONG:
                    found[reader.name] = _gather_slices(own, index + cut.start, len(cut))
                    continue
                index = index + cut if isinstance(cut, int) else index[:, None] + np.asarray(cut)
            found[reader.name] = own.take(index, axis=0)
    return found


def _gather_slices(rows: np.ndarray, begins: np.ndarray, length: int) -> np.ndarray:
    """Return (N, length, *row shape): for each of the N entries of `begins`, the `length` rows from there on. Whole
    slices are copied, which takes a third of the time of single rows."""
    shape = len(rows) - length + 1, length, *rows.shape[1:]
    strides = rows.strides[0], *rows.strides
    every = np.lib.stride_tricks.as_strided(rows, shape, strides, writeable=False)
    return np.asarray(every[begins])


@dataclass(frozen=True, slots=True, eq=False)
class _BlockRows:
    """Consecutive samples of a shuffle window that begin in the same block, and their rows.

    `rows`, `num_rows`: the rows of the table that the samples contain, and their number. `first`: index in the set of
    the first sample. `count`: number of samples. `windows`: how samples are cut from rows; None: each row is a sample.
    """

    rows: slice | np.ndarray
    num_rows: int
    first: int
    count: int
    windows: RowWindows | None

    @classmethod
    def of(cls, prepared: PreparedSet, samples: BlockRange) -> _BlockRows:
        begin, stop, windows = samples.first, samples.first + samples.count, prepared.windows
        if windows is not None:
            begin, last = windows.starts(np.asarray([begin, stop - 1])).tolist()
            stop = last + windows.length
        return cls(prepared.rows.between(begin, stop), stop - begin, samples.first, samples.count, windows)

    def first_rows(self) -> np.ndarray:
        """Return, for each sample, the index of its first row in `rows`."""
        if self.windows is None:
            return np.arange(self.count)
        found = self.windows.starts(np.arange(self.first, self.first + self.count))
        return np.asarray(found - found[0])
