"""Prepared sets of a run, made from its DataSpec, and samples of these sets for checks of values before the run.

same process      the sets that were prepared when the recipe was compiled are used again
same machine      processes map an unnamed file in memory (memfd) privately, so writes are not shared
otherwise         (another operating system, a set not in memory, user code that cannot be pickled) each process
                  prepares its own
"""

from __future__ import annotations

import dataclasses
import json
import mmap
import os
import pickle
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from declarative_train.components.data import Field, MissingPackageError, Table
from declarative_train.components.datasets import DATASETS
from declarative_train.components.fields import FIELDS
from declarative_train.components.registry import ComponentError
from declarative_train.components.split import Split
from declarative_train.components.splits import SPLITS
from declarative_train.core.amounts import format_count
from declarative_train.data.field_reader import BadSampleError, columns_of, make_reader
from declarative_train.data.lazy_fields import TransformChain, TransformError
from declarative_train.data.prepared_set import HOLD_BYTES, PreparedSet, prepare
from declarative_train.data.rows import RowRange, RowWindows, SetRows, row_order
from declarative_train.data.shuffle import max_held_bytes_of_others
from declarative_train.data.skipping import Skips
from declarative_train.data.source import arrange_rows, find_usable_rows, open_table
from declarative_train.data.spec import DataError, DataSpec, FieldSpec, SetSpec, WindowSpec
from declarative_train.data.split_rows import TRAINING, SplitError, split_rows
from declarative_train.files.paths import SourceError

_COUNTED = 1 << 14  # samples per chunk of `training_values`
# The sets of one spec. Forked ranks find here what their parent prepared. The sets are not part of the Job: it is
# pickled for spawned ranks, and would carry all data; those ranks read the files again.
_latest: dict[str, dict[str, PreparedSet]] = {}
_ALIGNED = 64  # bytes
_AT_ONCE = 1 << 30  # bytes of a write
MOST_ROWS = 1 << 16
MOST_ELEMENTS = 1 << 22
"""Largest number of elements of a field, so that an operation on it takes no noticeable time."""
MOST_READ = 1 << 12
"""Largest number of samples of a set that is not in memory, which are read for this alone."""
_MOST_COLUMNS = 64  # a field with more columns is not searched for extremes: an image has them everywhere


def remember(spec: DataSpec, sets: dict[str, PreparedSet]) -> None:
    """Keep these sets, so that the next call of `prepare_sets` with an equal spec returns them. Sets that were kept
    before are forgotten."""
    _keep(_key(spec), sets)


def _keep(key: str, sets: dict[str, PreparedSet]) -> None:
    _latest.clear()
    _latest[key] = sets


def _key(spec: DataSpec) -> str:
    """Return the spec as JSON text, which is the key of its prepared sets in a cache: equal specs have the same text.
    `dataclasses.asdict` would be slow, because it copies the records of all files."""
    return json.dumps(spec, default=_as_fields, sort_keys=True)


def _as_fields(value: Any) -> dict[str, object]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def prepare_sets(spec: DataSpec) -> dict[str, PreparedSet]:
    """Return the prepared sets by name, `training` first. Sets that are still in memory for an equal spec are reused;
    otherwise they are prepared now. Raises DataError if the data differ from the spec."""
    key = _key(spec)
    if key not in _latest:
        try:
            _keep(key, _prepare_all(spec))
        except (BadSampleError, ComponentError) as error:
            raise DataError(str(error)) from error
        except (MissingPackageError, SourceError, SplitError, TransformError, ValueError) as error:
            raise DataError(f"the data cannot be read as described in the plan: {error}") from error
    return _latest[key]


def training_values(spec: DataSpec, field: str) -> Iterator[np.ndarray]:
    """Yield the values (N, ...) of a field for all training samples, in chunks."""
    training = prepare_sets(spec)[TRAINING]
    for start in range(0, training.num_samples, _COUNTED):
        samples = np.arange(start, min(start + _COUNTED, training.num_samples))
        yield training.gather(samples, [field])[field]


def _prepare_all(spec: DataSpec) -> dict[str, PreparedSet]:
    window = spec.window
    fields = [(each, FIELDS.read(each.component)) for each in spec.fields]
    splits: dict[str, Split] = {
        each.name: SPLITS.read(each.split) for each in spec.sets if each.split is not None and each.source is None
    }
    chain = TransformChain.of(spec)
    skips = spec.on_bad_row == "skip"
    of_fields = {each.name: field for each, field in fields}
    main = open_table(DATASETS.read(spec.source), of_fields, skips=skips)
    by, sort = (None, None) if window is None else (window.by, window.sort)
    cuts, _ = find_usable_rows(main, split_rows(main, splits, spec.seed, by, sort), of_fields, skips=skips)
    rows = arrange_rows(cuts, window, row_order(main, window))
    sets: dict[str, PreparedSet] = {}
    for each in spec.sets:
        most = HOLD_BYTES
        if each.name == TRAINING:
            most = 0 if spec.is_block_shuffled else HOLD_BYTES
        elif each.source is None:
            most = max_held_bytes_of_others(sets[TRAINING])
        if each.source is not None:
            table = open_table(DATASETS.read(each.source), of_fields, skips=skips)
            whole, _ = find_usable_rows(table, {each.name: RowRange(0, table.num_rows)}, of_fields, skips=skips)
            own = arrange_rows(whole, window, row_order(table, window))[each.name]
            sets[each.name] = _prepare_one(each, table, own, fields, window, chain, most, skips)
        else:
            sets[each.name] = _prepare_one(each, main, rows[each.name], fields, window, chain, most, skips)
    return sets


def _prepare_one(
    wanted: SetSpec,
    table: Table,
    rows: tuple[SetRows, RowWindows | None],
    fields: list[tuple[FieldSpec, Field]],
    window: WindowSpec | None,
    chain: TransformChain,
    most: int,
    skips: bool,
) -> PreparedSet:
    readers = []
    for spec, field in fields:
        columns, missed = columns_of(field, table)
        if missed:
            raise DataError(f"the column `{missed[0]}` of field `{spec.name}` no longer exists")
        if (why := field.misreads(spec.statistics)) is not None:
            raise DataError(f"field `{spec.name}` differs from the plan: {why}")
        reader = make_reader(spec.name, field, columns, spec.statistics, window, chain)
        readers.append(reader)
        if reader.sample != spec.tensor:
            raise DataError(f"field `{reader.name}` is now {reader.sample}, but the plan was made for {spec.tensor}")
    found = prepare(
        wanted.name, table, *rows, tuple(readers), most, chain, is_checked=True, skips=Skips() if skips else None
    )
    if found.num_samples != wanted.num_samples:
        raise DataError(
            f"`{wanted.name}` has {format_count(found.num_samples, 'sample')}, but the plan was made for "
            f"{wanted.num_samples:,}"
        )
    return found


class Offer(NamedTuple):
    """Reference to the file in which another process shares its sets.

    `pid`, `file`: id of that process, and its file descriptor. `mark`: the first bytes of the file; they show that it
    is the right file, because a process in another container may have the same id. `ends`: offsets in the file at which
    the mark, the pickled sets, and each of their arrays end.
    """

    pid: int
    file: int
    mark: bytes
    ends: tuple[int, ...]


def offer(spec: DataSpec) -> Offer | None:
    """Prepare the sets, and share them with other processes through shared memory. From then on, this process uses the
    shared copy too. Return a reference with which other processes find the sets; None if they cannot be shared. Raises
    DataError."""
    sets = prepare_sets(spec)
    if not hasattr(os, "memfd_create") or not all(each.is_held for each in sets.values()):
        return None
    buffers: list[pickle.PickleBuffer] = []
    try:
        without_tables = {name: replace(each, table=_ClosedTable(each.table)) for name, each in sets.items()}
        pickled = pickle.dumps(without_tables, protocol=5, buffer_callback=buffers.append)
        made = _write_pieces([memoryview(pickled), *(each.raw() for each in buffers)])
    # every process then prepares its own sets
    except (pickle.PicklingError, AttributeError, TypeError, BufferError, OSError):
        return None
    accept(spec, made)
    return made


@contextmanager
def offer_sets(spec: DataSpec) -> Iterator[Offer | None]:
    """Share the prepared sets with other processes during the `with` block, and yield an Offer, from which they can
    open the sets.

    Yield None if the sets cannot be shared or prepared: each process then prepares its own sets, and reports the error.
    """
    try:
        made = offer(spec)
    except DataError:  # the other processes find it too, and report it
        made = None
    try:
        yield made
    finally:
        if made is not None:
            os.close(made.file)


def accept(spec: DataSpec, made: Offer) -> bool:
    """Map into memory the prepared sets that another process shares; `prepare_sets` then returns them. `made`:
    reference to them. Return False if they cannot be mapped."""
    try:
        sets = _read(made)
    except (OSError, ValueError, pickle.UnpicklingError, AttributeError, ImportError):
        return False
    remember(spec, sets)
    return True


def _write_pieces(pieces: Sequence[memoryview]) -> Offer:
    mark = secrets.token_bytes(_ALIGNED)
    ends = tuple(accumulate((each.nbytes for each in pieces), lambda end, size: _align(end) + size, initial=_ALIGNED))
    file = os.memfd_create("dtrain-held")
    try:
        os.truncate(file, ends[-1])
        _write(file, memoryview(mark), 0)
        for piece, (end, _) in zip(pieces, pairwise(ends), strict=True):
            _write(file, piece, _align(end))
    except OSError:
        os.close(file)
        raise
    return Offer(os.getpid(), file, mark, ends)


def _write(file: int, piece: memoryview, offset: int) -> None:
    while piece.nbytes:
        done = os.pwrite(file, piece[:_AT_ONCE], offset)
        piece, offset = piece[done:], offset + done


def _read(made: Offer) -> dict[str, PreparedSet]:
    file = os.open(f"/proc/{made.pid}/fd/{made.file}", os.O_RDONLY)
    try:
        mapped = mmap.mmap(file, made.ends[-1], mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    finally:
        os.close(file)
    whole = memoryview(mapped)
    if bytes(whole[:_ALIGNED]) != made.mark:
        raise ValueError("the file belongs to another process")
    pickled, *buffers = [whole[_align(begin) : end] for begin, end in pairwise(made.ends)]
    found: dict[str, PreparedSet] = pickle.loads(pickled, buffers=buffers)
    return found


def _align(offset: int) -> int:
    return -(-offset // _ALIGNED) * _ALIGNED


class _ClosedTable(Table):
    """Table of a set in memory, in a process that has not opened the files. It has the number of rows, the names of the
    files, and the blocks, but cannot read rows."""

    def __init__(self, table: Table) -> None:
        self.columns, self.num_rows, self.files = {}, table.num_rows, table.files
        self.members, self.blocks = table.members, table.blocks

    def read(self, columns: Sequence[str], rows: slice | np.ndarray) -> dict[str, np.ndarray]:
        raise SourceError(
            "unreadable", "rows of a set in memory were requested from its files, which this process has not opened"
        )


class Sample:
    """Samples for checks of values: samples of the training set, followed by samples of the other sets in the order of
    the recipe.

    `num_training`: number of training samples among them. `is_whole`: True if no sample of any set is left out.
    """

    def __init__(self, sets: Sequence[PreparedSet], most: int) -> None:
        self._sets = sets
        self._samples = [_choose_samples(each, most if number == 0 else most // 4) for number, each in enumerate(sets)]
        self.num_rows = sum(map(len, self._samples))
        self.num_training = len(self._samples[0])
        self.is_whole = all(len(chosen) == each.num_samples for chosen, each in zip(self._samples, sets, strict=True))
        self.has_all_training = self.num_training == sets[0].num_samples
        self._values: dict[str, np.ndarray | None] = {}

    def first(self, name: str, num_rows: int) -> np.ndarray | None:
        """Return the values (N, ...) of the field `name` for the first `num_rows` training samples, or for all if there
        are fewer. Return None if the field is lazy (images), or if its values cannot be read."""
        if name in self._values:
            found = self._values[name]
            return None if found is None else found[: min(num_rows, self.num_training)]
        if self._is_lazy(name):
            return None
        try:
            return self._sets[0].gather(self._samples[0][:num_rows], [name])[name]
        except (SourceError, BadSampleError):
            return None

    def pick_extremes(self, names: Sequence[str], num_rows: int, most: int) -> dict[str, np.ndarray | None]:
        """Return {field name: values} for the first `num_rows` training samples, then at most `most` others with
        extreme values. The values are None for a lazy field (images) and for one that cannot be read now.

        Extreme are the minimum and maximum of a column, and the value closest to zero, where logarithms, roots and
        divisions fail first. They are searched only if the training set is in memory."""
        if self._sets[0].held is None:
            return {name: self.first(name, num_rows) for name in names}
        found = {name: self.values(name) for name in names}
        chosen = list(range(min(num_rows, self.num_training)))
        extremes = [row for values in found.values() if values is not None for row in self._extremes(values)]
        chosen += [row for row in dict.fromkeys(extremes) if row not in chosen][:most]
        return {name: None if values is None else values[chosen] for name, values in found.items()}

    def _extremes(self, values: np.ndarray) -> Iterator[int]:
        if values.dtype.kind not in "iuf" or not self.num_training or values[0].size > _MOST_COLUMNS:
            return
        columns = values[: self.num_training].reshape(self.num_training, -1)
        for column in columns.T:
            yield from (int(np.argmin(column)), int(np.argmax(column)), int(np.argmin(np.abs(column))))

    def values(self, name: str) -> np.ndarray | None:
        """Return the values (N, *sample shape) of a field for all of these N samples. Return None if the field is lazy
        (images), or if its values cannot be read now."""
        if name not in self._values and self._is_lazy(name):
            self._values[name] = None
        if name not in self._values:
            try:
                parts = [
                    each.gather(chosen, [name])[name] for each, chosen in zip(self._sets, self._samples, strict=True)
                ]
                self._values[name] = np.concatenate(parts)
            except (SourceError, BadSampleError):  # the file changed meanwhile: the run reports it
                self._values[name] = None
        return self._values[name]

    def _is_lazy(self, name: str) -> bool:
        """Return whether the values of a field are read from files, such as images, each time they are used."""
        return any(reader.name == name and reader.field.is_lazy for reader in self._sets[0].readers)

    def place(self, row: int) -> str:
        """Return the position (file and row) of sample number `row`, for messages. The position of a window is that of
        its first row."""
        for each, chosen in zip(self._sets, self._samples, strict=True):
            if row < len(chosen):
                indices = chosen[row : row + 1]
                if each.windows is not None:
                    indices = each.windows.starts(indices)
                where = each.table.place(int(each.rows.at(indices)[0]))
                return where if each.name == "training" else f"{where}, in {each.name}"
            row -= len(chosen)
        raise IndexError(row)


def sample(spec: DataSpec) -> Sample:
    """Return some samples of each set of the spec `spec`, for checks of their values. Raises DataError."""
    sets: Mapping[str, PreparedSet] = prepare_sets(spec)
    largest = max((field.tensor.num_elements for field in spec.fields), default=1)
    return Sample(tuple(sets.values()), max(16, min(MOST_ROWS, MOST_ELEMENTS // max(largest, 1))))


def _choose_samples(each: PreparedSet, most: int) -> np.ndarray:
    """Return the indices of at most `most` samples of a set, ascending and spread evenly over the set. If the set is
    not in memory, they are its first samples."""
    if each.held is None:
        return np.arange(min(each.num_samples, most, MOST_READ))
    if each.num_samples <= most:
        return np.arange(each.num_samples)
    return np.linspace(0, each.num_samples - 1, most).astype(np.int64)
