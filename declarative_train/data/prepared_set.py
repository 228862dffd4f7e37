"""Preparation of a set: the rows of a table are converted to fields, of which samples consist.

A small set is kept in memory as arrays, a larger one is read row by row. This module does not import torch, because
lint prepares the sets too, to check every value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from declarative_train.components.data import BadValueError, Table
from declarative_train.core.packs import hooks
from declarative_train.core.tensor_spec import FLOATING
from declarative_train.data.field_reader import (
    BadSampleError,
    FieldReader,
    base_of,
    chunk_rows,
    column_names,
    convert_chunks,
    convert_rows,
    failing,
)
from declarative_train.data.lazy_fields import NO_TRANSFORMS, LazyFieldError, LazyValues, TransformChain
from declarative_train.data.length_buckets import find_bucket_ids
from declarative_train.data.rows import RowRange, RowWindows, SetRows
from declarative_train.data.skipping import LOG, Skipped, Skips
from declarative_train.data.statistics import StatisticsCache
from declarative_train.files.open_files import is_remote

HOLD_BYTES = 2 << 30  # a set of at most this size is kept in memory
NARROW_BYTES = 16 << 20  # a field of integers larger than this is kept in the smallest dtype that fits
_GLANCED_ROWS = 1 << 12
_GLANCED = 8  # values of a lazy field that are checked before the run
DECODED_BYTES = 16 << 20  # size of the files of a set that are decoded before the run, which takes about a second
LOOKED_AT_ROWS = 1 << 16  # rows of a set not in memory whose values are checked before the run


@dataclass(frozen=True, slots=True, eq=False)
class PreparedSet:
    """Set that is ready for training.

    rows        rows of the set in the table
    windows     how samples are cut from the rows; None: each row is a sample
    readers     readers of the fields
    held        dict from each field in memory to the values of all rows; None: all fields are read for each batch
    chain       transforms of images
    skips       bad rows, if the recipe skips them; None: a bad row is an error
    bucket_ids  (samples,) index of the length bucket; None without length buckets
    """

    name: str
    table: Table
    rows: SetRows
    windows: RowWindows | None
    readers: tuple[FieldReader, ...]
    held: dict[str, np.ndarray] | None
    chain: TransformChain = NO_TRANSFORMS
    skips: Skips | None = None
    bucket_ids: np.ndarray | None = None

    @property
    def lazy(self) -> tuple[FieldReader, ...]:
        """Readers of the lazy fields (such as images), whose values are read when a batch is made."""
        return tuple(reader for reader in self.readers if reader.field.is_lazy)

    @property
    def is_held(self) -> bool:
        """True if the values of all fields are in memory."""
        return self.held is not None and not self.lazy

    @property
    def held_bytes(self) -> int:
        return sum(rows.nbytes for rows in self.held.values()) if self.held is not None and self.is_held else 0

    @property
    def size_bytes(self) -> int | None:
        """Size in bytes of all values of the set, as they would be in memory. Images count with the size of their
        files. None if unknown."""
        readers = [reader for reader in self.readers if not reader.field.is_lazy]
        numbers = sum(storage_dtype(reader, len(self.rows)).itemsize * reader.row.num_elements for reader in readers)
        if not self.lazy:
            return numbers * len(self.rows)
        of_table = self.table.size_bytes(column_names(self.lazy))
        if of_table is None:
            return None
        return numbers * len(self.rows) + of_table * len(self.rows) // max(1, self.table.num_rows)

    @property
    def num_samples(self) -> int:
        return len(self.rows) if self.windows is None else len(self.windows)

    def gather(
        self, samples: np.ndarray, names: Collection[str] | None = None, epoch: int | None = None
    ) -> dict[str, np.ndarray]:
        """Return a dict from field name to values (N, *sample shape), for N samples given by their indices in the set
        (int64).

        `names`: the fields to return; None: all. `epoch`: the training epoch, None in an evaluation; random transforms
        of images are used only in training. Raises BadSampleError and SourceError.
        """
        if self.skips is None or self.windows is not None or self.is_held:
            return self._gather(samples, names, epoch)
        samples = np.asarray(samples, np.int64)
        while True:
            try:
                return self._gather(self.skips.replace_bad(samples, self.rows), names, epoch)
            except BadSampleError as error:
                self.skip(error)

    def skip(self, error: BadSampleError) -> None:
        """Mark the row in `error` as bad, so that the next good sample replaces it from now on. Raises `error` if no
        good sample is left."""
        assert self.skips is not None
        if not self.skips.add(error.row) or self.skips.num_bad >= len(self.rows):
            raise error
        LOG.write(Skipped(self.name, self.table.place(error.row), str(error.cause)))

    @property
    def left_out(self) -> list[Skipped]:
        """Bad rows that were found and removed before the run."""
        return [] if self.skips is None else self.skips.left_out

    def is_skipped(self, samples: np.ndarray) -> np.ndarray | None:
        """Return (N,) bool: True for each of `samples` that is known to be bad and must be replaced by another. Return
        None if none is, or if the samples are windows."""
        if self.skips is None or not self.skips.num_bad or self.windows is not None:
            return None
        found = self.skips.bad(self.rows.at(samples))
        return found if found.any() else None

    def _gather(
        self, samples: np.ndarray, names: Collection[str] | None = None, epoch: int | None = None
    ) -> dict[str, np.ndarray]:
        wanted = [reader for reader in self.readers if names is None or reader.name in names]
        readers = [reader for reader in wanted if not reader.field.is_lazy]
        lazy = self._read_lazy(np.asarray(samples, np.int64), epoch) if len(readers) < len(wanted) else {}
        values = self._gather_others(samples, readers) | lazy
        return {reader.name: values[reader.name] for reader in wanted}

    def _read_lazy(self, samples: np.ndarray, epoch: int | None) -> dict[str, np.ndarray]:
        return self.decode_lazy(self.read_columns(samples), samples, epoch)

    def decode_lazy(
        self, given: Mapping[str, LazyValues], samples: np.ndarray, epoch: int | None
    ) -> dict[str, np.ndarray]:
        """Return a dict from field name to the decoded values of each lazy field, for these samples.

        `given`: dict from field name to the content of its columns. An image and its mask get the same random numbers,
        so that they are transformed alike. Raises BadSampleError.
        """
        try:
            return self.chain.arrays(given, {reader.name: reader.sample.shape for reader in self.lazy}, samples, epoch)
        except LazyFieldError as error:
            reader = next(reader for reader in self.lazy if reader.name == error.name)
            row = int(self.rows.at(samples[error.row : error.row + 1])[0])
            raise BadSampleError(reader, row, error.cause) from error

    def read_columns(self, samples: np.ndarray) -> dict[str, LazyValues]:
        """Return {lazy field: content of its columns} for `samples` (indices in the set). Raises SourceError."""
        lazy = self.lazy
        read = self.table.read(column_names(lazy), self.rows.at(samples))
        return {reader.name: LazyValues.of(reader.field, reader.columns, read) for reader in lazy}

    def _gather_others(self, samples: np.ndarray, readers: Sequence[FieldReader]) -> dict[str, np.ndarray]:
        if not readers:
            return {}
        if self.windows is not None and self.held is None and isinstance(self.rows, RowRange):
            return self._read_windows(self.windows.starts(samples) + self.rows.start, self.windows.length, readers)
        indices = np.asarray(samples, np.int64)
        length = 1 if self.windows is None else self.windows.length
        if self.windows is not None:
            indices = (self.windows.starts(indices)[:, None] + np.arange(length)).ravel()
        if self.held is not None:
            values = {reader.name: self.held[reader.name][indices] for reader in readers}
        else:
            values = convert_rows(self.table, self.rows.at(indices), readers)
        if self.windows is None:
            return values
        whole = {name: array.reshape(len(samples), length, *array.shape[1:]) for name, array in values.items()}
        return {reader.name: whole[reader.name][:, reader.cut] for reader in readers}

    def _read_windows(self, starts: np.ndarray, length: int, readers: Sequence[FieldReader]) -> dict[str, np.ndarray]:
        """Read windows of `length` consecutive rows of the table; each of `starts` is the first row of one window.

        Return {field: values (N, K, *row shape)}, where K is the number of rows of a window that the field uses. The
        values of a field that uses a single row are (N, *row shape). Raises BadSampleError."""
        read = self.table.read_runs(column_names(readers), np.asarray(starts, np.int64), length)
        found = {}
        for reader in readers:
            taken = {column.name: read[column.name][:, reader.cut] for column in reader.columns}
            inner = next(iter(taken.values())).shape[
                1 : read[reader.columns[0].name].ndim - len(reader.columns[0].shape)
            ]
            flat = {name: np.reshape(each, (-1, *each.shape[1 + len(inner) :])) for name, each in taken.items()}
            try:
                made = reader.values(flat)
            except BadValueError as error:
                sample, index = divmod(error.row, inner[0] if inner else 1)
                row = starts[sample] + np.arange(length)[reader.cut][index] if inner else starts[sample] + reader.cut
                raise BadSampleError(reader, int(row), error) from error
            found[reader.name] = made.reshape(len(starts), *inner, *made.shape[1:])
        return found


def prepare(
    name: str,
    table: Table,
    rows: SetRows,
    windows: RowWindows | None,
    every: tuple[FieldReader, ...],
    hold_bytes: int = HOLD_BYTES,
    chain: TransformChain | None = None,
    known: StatisticsCache | None = None,
    *,
    is_checked: bool = False,
    skips: Skips | None = None,
) -> PreparedSet:
    """Return the prepared set `name`. Its values are converted and kept in memory if the set is small.

    rows, windows   rows of the set in the table; how samples are cut from them
    every           readers of all fields of the set
    hold_bytes      maximum size at which the set is kept in memory
    chain           transforms of images
    known           cache of which sets outside of memory were checked before
    is_checked      values of a set outside of memory are not checked again
    skips           record of bad rows, which are left out or replaced; None: bad rows are errors

    Raises BadSampleError, SourceError, MissingPackageError.
    """
    chain = chain or NO_TRANSFORMS
    for prepare_fields in hooks("prepare_fields"):
        table, rows, every = prepare_fields(table, rows, every, skips=skips is not None)
    readers = tuple(reader for reader in every if not reader.field.is_lazy)
    lazy = [reader for reader in every if reader.field.is_lazy]
    check_lazy_fields(table, rows, lazy, chain, skips, name, decoded_bytes=0 if is_checked else DECODED_BYTES)
    if not readers:
        return PreparedSet(name, table, rows, windows, every, {}, chain, skips, find_bucket_ids(table, rows, every))
    stores = {reader.name: storage_dtype(reader, len(rows)) for reader in readers}
    if (
        sum(store.itemsize * reader.row.num_elements * len(rows) for reader, store in _with(readers, stores))
        > hold_bytes
    ):
        if skips is not None and windows is None:
            for found in _bad_rows(table, rows, readers, LOOKED_AT_ROWS):
                skips.add(found.row)
                skips.left_out.append(Skipped(name, table.place(found.row), str(found.cause)))
        elif known is not None:
            known.check_once(readers, lambda: check_first_rows(table, rows, readers))
        elif not is_checked:
            check_first_rows(table, rows, readers)
        return PreparedSet(name, table, rows, windows, every, None, chain, skips, find_bucket_ids(table, rows, every))
    if skips is not None and windows is None and (bad := list(_bad_rows(table, rows, readers, len(rows)))):
        skips.left_out += [Skipped(name, table.place(each.row), str(each.cause)) for each in bad]
        numbers = rows.at(np.arange(len(rows)))
        rows = rows.pick(np.flatnonzero(~np.isin(numbers, [each.row for each in bad])))
    held: dict[str, np.ndarray] = {}
    for start, values in convert_chunks(table, rows, readers):
        for reader, store in _with(readers, stores):
            made = values[reader.name]
            if len(made) == len(rows) and made.dtype == store:
                held[reader.name] = _own(made)
                continue
            if reader.name not in held:
                held[reader.name] = np.empty((len(rows), *reader.row.shape), store)
            held[reader.name][start : start + len(made)] = made
    for reader, store in _with(readers, stores):
        held.setdefault(reader.name, np.empty((0, *reader.row.shape), store))
    return PreparedSet(name, table, rows, windows, every, held, chain, skips, find_bucket_ids(table, rows, every))


def _bad_rows(table: Table, rows: SetRows, readers: Sequence[FieldReader], most: int) -> Iterator[BadSampleError]:
    """Convert the first `most` rows of a set, rounded up to whole chunks, and yield an error for each row that a field
    cannot convert."""
    for start, numbers in rows.chunks(chunk_rows(readers)):
        if start >= most:
            return
        listed = np.arange(numbers.start, numbers.stop) if isinstance(numbers, slice) else numbers
        yield from failing(table.read(column_names(readers), numbers), listed, readers)


def check_lazy_fields(
    table: Table,
    rows: SetRows,
    lazy: Sequence[FieldReader],
    chain: TransformChain,
    skips: Skips | None = None,
    name: str = "",
    *,
    decoded_bytes: int = 0,
) -> None:
    """Check the first images and boxes of the set `name`, so that errors are found before the run. Errors in later rows
    are found when a batch reads them. Raises SourceError and MissingPackageError.

    `lazy`           readers of the fields with images or boxes
    `skips`          collects the bad rows; None: a bad row raises BadSampleError
    `decoded_bytes`  local images are decoded completely until they have this size in total, in bytes; of all other
                     images only the header is read"""
    left = 0 if any(map(is_remote, table.files)) else decoded_bytes
    for reader in lazy:
        if reader.name != base_of(reader.name):
            continue
        most, step = (LOOKED_AT_ROWS, _GLANCED_ROWS) if reader.field.takes_lists else (_GLANCED, _GLANCED)
        for begin in range(0, len(rows), step):
            if begin >= most and (left <= 0 or reader.field.takes_lists):
                break
            first = rows.at(np.arange(begin, min(len(rows), begin + step)))
            given = LazyValues.of(reader.field, reader.columns, table.read(column_names([reader]), first))
            for index in range(len(first)):
                try:
                    left -= chain.glance(given, index, whole=left > 0)
                except BadValueError as error:
                    if skips is None:
                        raise BadSampleError(reader, int(first[index]), error) from error
                    if skips.add(int(first[index])):
                        skips.left_out.append(Skipped(name, table.place(int(first[index])), str(error)))


def _with(
    readers: Sequence[FieldReader], stores: Mapping[str, np.dtype[np.generic]]
) -> list[tuple[FieldReader, np.dtype[np.generic]]]:
    return [(reader, stores[reader.name]) for reader in readers]


def storage_dtype(reader: FieldReader, num_rows: int) -> np.dtype[np.generic]:
    """Return the numpy dtype in which a set of `num_rows` rows keeps a field in memory. It is `reader.storage`, or a
    smaller dtype for a large field of integers whose range is known."""
    size = reader.row.num_values
    if size is None or reader.row.dtype in FLOATING or reader.row.num_elements * num_rows * 8 <= NARROW_BYTES:
        return reader.storage
    narrow = next(kind for kind in ("uint8", "int16", "int32", "int64") if size - 1 <= np.iinfo(kind).max)
    return min(reader.storage, np.dtype(narrow), key=lambda kind: kind.itemsize)


def _own(array: np.ndarray) -> np.ndarray:
    """Return `array`, or a copy if it is read-only or a view. The memory of such an array may belong to the table, or
    to a mapped file that another program can shorten."""
    return array.copy() if array.base is not None or not array.flags.writeable else array


def check_first_rows(table: Table, rows: SetRows, readers: Sequence[FieldReader], most: int = LOOKED_AT_ROWS) -> None:
    """Convert at least the first `most` rows of a set, in whole chunks, to find values that the fields cannot convert.
    Raises BadSampleError and SourceError."""
    for start, _ in convert_chunks(table, rows, readers):
        if start >= most:
            return
