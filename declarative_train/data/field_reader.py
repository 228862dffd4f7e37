"""Reader of a field: everything that turns rows of a table into the field's values in a batch."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from declarative_train.components.data import Column, Field, Table
from declarative_train.components.fields.columns import match_columns
from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.data.late import NO_TRANSFORMS, TransformChain
from declarative_train.data.spec import WindowSpec


@dataclass(frozen=True, slots=True, eq=False)
class FieldReader:
    """Field with everything that turns rows of the table into its values. `row` is the spec of one row, `sample` the
    spec per sample of a batch.
    """

    name: str
    field: Field
    columns: tuple[Column, ...]
    statistics: Mapping[str, object]
    row: TensorSpec
    sample: TensorSpec

    def values(self, read: Mapping[str, np.ndarray]) -> np.ndarray:
        """Convert the columns' values. Raises BadValueError."""
        return self.field.convert([read[column.name] for column in self.columns], self.columns, self.statistics)

    def values_into(self, read: Mapping[str, np.ndarray], out: np.ndarray) -> None:
        """Convert into `out` (N, *row shape), contiguous, of dtype `storage`. Raises BadValueError."""
        values = [read[column.name] for column in self.columns]
        self.field.convert_into(out, values, self.columns, self.statistics)

    @property
    def cut(self) -> slice | int:
        """Rows of a window that the field takes."""
        return slice(None) if self.field.cut is None else self.field.cut

    @property
    def storage(self) -> np.dtype[np.generic]:
        """Dtype that `values` returns."""
        return np.dtype("float32" if self.row.dtype == "bfloat16" else self.row.dtype)


def columns_of(field: Field, table: Table) -> tuple[tuple[Column, ...], tuple[str, ...]]:
    """Return the columns of the field, and its names and globs that match none."""
    found, missed = match_columns(field.wanted, list(table.columns), field.unwanted)
    return tuple(table.columns[name] for name in found), missed


def make_part(
    name: str,
    field: Field,
    columns: tuple[Column, ...],
    statistics: Mapping[str, object],
    window: WindowSpec | None,
    chain: TransformChain | None = None,
) -> FieldReader:
    """Make the reader of a field. Raises TransformError."""
    if field.reads_late:
        row = (chain or NO_TRANSFORMS).spec(name, field, columns)
    else:
        row = field.row_spec(columns, statistics)
    return FieldReader(name, field, columns, statistics, row, _sample(field, row, window))


def _sample(field: Field, row: TensorSpec, window: WindowSpec | None) -> TensorSpec:
    """Return the spec per sample: the window's rows are the first dimension."""
    if window is None or isinstance(field.cut, int):
        return row
    length = len(range(*(field.cut or slice(None)).indices(window.length)))
    return replace(row, shape=(length, *row.shape))


def column_names(parts: Sequence[FieldReader]) -> list[str]:
    return list(dict.fromkeys(column.name for part in parts for column in part.columns))


def each_output(fields: Mapping[str, Field], read: Collection[str] | None) -> Iterator[tuple[str, Field]]:
    """Yield every field, followed by those of its other outputs that are read."""
    for name, field in fields.items():
        yield name, field
        for output in field.outputs[1:]:
            if read is None or f"{name}.{output}" in read:
                yield f"{name}.{output}", field.output_of(output)


def base_of(name: str) -> str:
    """Return the field in the recipe to which an output belongs."""
    return name.partition(".")[0]
