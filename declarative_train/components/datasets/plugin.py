"""Source of a plugin: a user's class that returns rows by index. The class or the recipe may declare the columns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import TypeAdapter, ValidationError

from declarative_train.components.data import Dataset, Table
from declarative_train.components.datasets.plugin_columns import ColumnKeys, Declared
from declarative_train.components.plugin_components import PluginComponent

if TYPE_CHECKING:
    import numpy as np

_DECLARED: TypeAdapter[dict[str, Any]] = TypeAdapter(Declared)


class PluginDataset(PluginComponent, Dataset):
    """Source of a plugin. The user's class has one of two methods: `__getitem__` returns one row by its index, `read`
    returns several rows. The results are compared with the columns that the recipe or the class declares."""

    own: ClassVar[frozenset[str]] = frozenset({"type", "columns"})
    declared: ClassVar[Mapping[str, Any] | None] = None
    """Columns declared by the class itself."""

    columns: Declared | None = None
    """Columns of a row by name, in the order of a tuple. Left out: as the class declares them, else as
    row 1 has them."""

    @classmethod
    def declare(cls, key: str, value: object) -> None:
        try:
            cls.declared = _DECLARED.validate_json(json.dumps(value), strict=True)
        except (TypeError, ValidationError) as error:
            at = error.errors()[0]["loc"][:1] if isinstance(error, ValidationError) else ()
            message = f"`columns` does not describe the values of a row{f', at `{at[0]}`' if at else ''}"
            hint = 'write `columns = {"x": {"dtype": "float32", "shape": (8,)}, "y": "int64"}`'
            raise ValueError(message, hint) from error

    @property
    def keys(self) -> dict[str, ColumnKeys] | None:
        """Dtype and shape of each column by name, as the recipe or the user's class declares them. None if neither
        declares the columns."""
        declared = self.columns if self.columns is not None else self.declared
        if declared is None:
            return None
        return {
            name: each if isinstance(each, ColumnKeys) else ColumnKeys(dtype=each) for name, each in declared.items()
        }

    @property
    def hint(self) -> str:
        """Help text for a row that does not match the declared columns."""
        if self.columns is not None:
            return "return that, or fix `columns` of the source"
        wanted = "return that, or fix" if self.declared is not None else "every row must return the same; declare it in"
        return f"{wanted} `columns` of the class `{self.plugin_class}`"

    def open(self) -> Table:
        from declarative_train.components.datasets.plugin_table import PluginTable

        return PluginTable(self)

    def outline(self) -> Table | None:
        """Return a table that has the declared columns, but whose rows cannot be read. It is for callers that must not
        run the user's code. Return None if no columns are declared."""
        return None if self.keys is None else _Outline(self.keys)


class _Outline(Table):
    """Table with the declared columns of a plugin's source. It is used where the user's code must not run, so its rows
    cannot be read."""

    num_rows = 1  # not 0, because columns of an empty table are not checked

    def __init__(self, keys: Mapping[str, ColumnKeys]) -> None:
        self.columns = {name: each.column(name) for name, each in keys.items()}

    def read(self, columns: Sequence[str], rows: slice | np.ndarray) -> dict[str, np.ndarray]:
        import numpy as np

        return {name: np.empty((0, *self.columns[name].shape), object) for name in columns}
