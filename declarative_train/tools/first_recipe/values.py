"""Values of table columns that `dtrain init` reads to decide how a first recipe uses the columns."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from declarative_train.components.data import Column, Table
from declarative_train.tools.first_recipe.opening import rows_to_inspect

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class ColumnValues:
    """Values of a column that were read for inspection. `values`: the values of all inspected rows. `present`: mask of
    those that are not missing. `words`: the number of rows of each value, without missing values."""

    column: Column
    values: np.ndarray
    present: np.ndarray
    words: Counter[Any]

    @property
    def name(self) -> str:
        return self.column.name

    @property
    def is_text(self) -> bool:
        return self.column.dtype == "object"

    @property
    def num_missing(self) -> int:
        return int((~self.present).sum())

    @property
    def is_whole(self) -> bool:
        import numpy as np

        if self.values.dtype.kind not in "iuf":
            return self.column.dtype == "bool"
        found = self.values[self.present]
        return bool((np.floor(found) == found).all())


def read_column(table: Table, name: str) -> ColumnValues:
    import numpy as np

    column = table.columns[name]
    values = table.read([name], rows_to_inspect(table))[name]
    if values.dtype == object:
        present = np.fromiter((value is not None for value in values), bool, len(values))
    elif values.ndim > 1:
        present = np.ones(len(values), bool)
    else:
        present = values == values
    words = Counter[Any]() if values.ndim > 1 else Counter(values[present].tolist())
    return ColumnValues(column, values, present, words)
