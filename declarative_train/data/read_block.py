"""Reading of a block: consecutive rows, read once -> values of fields, which fill a window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from declarative_train.components.data import Table
from declarative_train.data.field_reader import FieldReader, column_names
from declarative_train.data.materialize import BadSampleError, PreparedSet, failing, in_row, values_of
from declarative_train.data.skipping import LOG, Skipped

_SPARSE = 8  # neighbours of which fewer are wanted are not read as one stretch


def convert_good(
    prepared: PreparedSet, numbers: slice | np.ndarray, parts: Sequence[FieldReader], late: Sequence[FieldReader]
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], np.ndarray | None]:
    """Convert consecutive rows and replace bad ones. Raises BadSampleError and SourceError.

    Returns the values of `parts`, the columns of `late` and, if rows were skipped, the index of the value that replaces
    each row: its own, or that of the next good row.
    """
    table = prepared.table
    read = read_once(table, column_names([*parts, *late]), numbers)  # together: files of a sample lie side by side
    raw = {name: read[name] for name in column_names(late)}
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
    late: Sequence[FieldReader],
) -> dict[str, np.ndarray]:
    """Convert consecutive rows into the given arrays of each part; return the columns of `late`.

    Raises BadSampleError and SourceError.
    """
    read = read_once(prepared.table, column_names([*parts, *late]), numbers)
    for part, out in parts.items():
        with in_row(part, numbers):
            part.values_into(read, out)
    return {name: read[name] for name in column_names(late)}


def read_once(table: Table, columns: Sequence[str], numbers: slice | np.ndarray) -> dict[str, np.ndarray]:
    """Read rows in ascending order, as one slice if they are dense. Raises SourceError."""
    if isinstance(numbers, slice):
        return table.read_once(columns, numbers)
    first, last = int(numbers[0]), int(numbers[-1]) + 1
    if last - first > _SPARSE * len(numbers):
        return table.read(columns, numbers)
    return {name: values[numbers - first] for name, values in table.read_once(columns, slice(first, last)).items()}
