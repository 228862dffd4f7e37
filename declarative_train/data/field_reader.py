"""Readers of fields: rows of a table -> values of a field."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from declarative_train.components.data import BadValueError, Column, Field, Table
from declarative_train.components.fields.columns import match_columns
from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.data.lazy_fields import NO_TRANSFORMS, TransformChain
from declarative_train.data.rows import SetRows
from declarative_train.data.skipping import bad_places
from declarative_train.data.spec import WindowSpec

_CHUNK_BYTES = 32 << 20
_CHUNK_ROWS = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class FieldReader:
    """Field with everything that is needed to compute its values from rows of a table. `row`: shape and dtype of the
    field for one row. `sample`: shape and dtype for one sample, which may be a window of rows."""

    name: str
    field: Field
    columns: tuple[Column, ...]
    statistics: Mapping[str, object]
    row: TensorSpec
    sample: TensorSpec

    def values(self, read: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the values of the field, (N, *row shape). `read`: dict from column name to the column's N values.
        Raises BadValueError."""
        return self.field.convert([read[column.name] for column in self.columns], self.columns, self.statistics)

    def values_into(self, read: Mapping[str, np.ndarray], out: np.ndarray) -> None:
        """Write the values of the field into `out` (N, *row shape), which is contiguous and of dtype `storage`. `read`:
        dict from column name to the column's N values. Raises BadValueError."""
        values = [read[column.name] for column in self.columns]
        self.field.convert_into(out, values, self.columns, self.statistics)

    @property
    def cut(self) -> slice | int:
        """Index that selects the rows of a window that the field uses: a slice, or an integer for a single row."""
        return slice(None) if self.field.cut is None else self.field.cut

    @property
    def storage(self) -> np.dtype[np.generic]:
        """Numpy dtype of the result of `values`."""
        return np.dtype("float32" if self.row.dtype == "bfloat16" else self.row.dtype)


def columns_of(field: Field, table: Table) -> tuple[tuple[Column, ...], tuple[str, ...]]:
    """Return the columns of the table that a field selects, and the names and globs of the field that match no
    column."""
    found, missed = match_columns(field.wanted, list(table.columns), field.unwanted)
    return tuple(table.columns[name] for name in found), missed


def make_reader(
    name: str,
    field: Field,
    columns: tuple[Column, ...],
    statistics: Mapping[str, object],
    window: WindowSpec | None,
    chain: TransformChain | None = None,
) -> FieldReader:
    """Return the reader of a field. `statistics`: the field's statistics of the training rows. `window`: the key
    `window` of the recipe; None if a sample is one row. `chain`: the transforms of images. Raises TransformError."""
    if field.is_lazy:
        row = (chain or NO_TRANSFORMS).spec(name, field, columns)
    else:
        row = field.row_spec(columns, statistics)
    return FieldReader(name, field, columns, statistics, row, _sample(field, row, window))


def _sample(field: Field, row: TensorSpec, window: WindowSpec | None) -> TensorSpec:
    """Return shape and dtype of a field for one sample, given those for one row. If the field uses several rows of a
    window, dimension 0 has one entry for each of them."""
    if window is None or isinstance(field.cut, int):
        return row
    length = len(range(*(field.cut or slice(None)).indices(window.length)))
    return replace(row, shape=(length, *row.shape))


def column_names(readers: Sequence[FieldReader]) -> list[str]:
    return list(dict.fromkeys(column.name for reader in readers for column in reader.columns))


def each_output(fields: Mapping[str, Field], read: Collection[str] | None) -> Iterator[tuple[str, Field]]:
    """Yield (name, field) for each field and for its additional outputs, such as `NAME.mask`. `read`: names of the
    additional outputs to yield; None: all."""
    for name, field in fields.items():
        yield name, field
        for output in field.outputs[1:]:
            if read is None or f"{name}.{output}" in read:
                yield f"{name}.{output}", field.output_of(output)


def base_of(name: str) -> str:
    """Return the name of the field to which an output belongs: `NAME` for `NAME.mask`, and `NAME` for `NAME`."""
    return name.partition(".")[0]


class BadSampleError(Exception):
    """Error: a field cannot convert a value. `reader`: reader of the field. `row`: index of the row in the table."""

    def __init__(self, reader: FieldReader, row: int, cause: BadValueError) -> None:
        super().__init__(f"field `{reader.name}`: {cause}")
        self.reader = reader
        self.row = row
        self.cause = cause


def failing(
    read: Mapping[str, np.ndarray], rows: np.ndarray, readers: Sequence[FieldReader]
) -> Iterator[BadSampleError]:
    """Yield an error for each row that a field cannot convert. `read`: dict from column name to the values of the rows.
    `rows`: index in the table of each row."""

    def fails(start: int, stop: int) -> Exception | None:
        try:
            values_of({name: values[start:stop] for name, values in read.items()}, rows[start:stop], readers)
        except BadSampleError as found:
            return found
        return None

    for _, error in bad_places(len(rows), fails):
        yield cast("BadSampleError", error)


def convert_chunks(
    table: Table, rows: SetRows, readers: Sequence[FieldReader]
) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Convert the rows of a set in chunks. Yield for each chunk the index within the set of its first row, and a dict
    from field name to values. `readers`: readers of the fields. Raises BadSampleError and SourceError."""
    for start, numbers in rows.chunks(chunk_rows(readers)):
        yield start, convert_rows(table, numbers, readers)


def convert_rows(table: Table, numbers: slice | np.ndarray, readers: Sequence[FieldReader]) -> dict[str, np.ndarray]:
    return values_of(table.read(column_names(readers), numbers), numbers, readers)


def values_of(
    read: Mapping[str, np.ndarray], numbers: slice | np.ndarray, readers: Sequence[FieldReader]
) -> dict[str, np.ndarray]:
    values = {}
    for reader in readers:
        with in_row(reader, numbers):
            values[reader.name] = reader.values(read)
    return values


@contextmanager
def in_row(reader: FieldReader, numbers: slice | np.ndarray) -> Iterator[None]:
    """Convert a BadValueError of the `with` block into a BadSampleError, which names the row of the table. `numbers`:
    index in the table of each row that the block converts."""
    try:
        yield
    except BadValueError as error:
        row = numbers.start + error.row if isinstance(numbers, slice) else int(numbers[error.row])
        raise BadSampleError(reader, row, error) from error


def chunk_rows(readers: Sequence[FieldReader]) -> int:
    row_bytes = sum(8 * reader.row.num_elements for reader in readers)
    return max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // max(row_bytes, 1)))
