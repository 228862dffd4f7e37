"""A source of a plugin: a class that gives rows by number, and the columns that it or the recipe declares."""

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
    """`__getitem__` gives one row by its number, or `read` several; what comes out is held against the columns."""

    own: ClassVar[frozenset[str]] = frozenset({"type", "columns"})
    declared: ClassVar[Mapping[str, Any] | None] = None
    """By the class itself."""

    columns: Declared | None = None
    """What a row holds, by name, in the order of a tuple; left out: as the class declares it, else as row 1 has it."""

    @classmethod
    def declare(cls, key: str, value: object) -> None:
        try:
            cls.declared = _DECLARED.validate_json(json.dumps(value), strict=True)
        except (TypeError, ValidationError) as error:
            at = error.errors()[0]["loc"][:1] if isinstance(error, ValidationError) else ()
            message = f"`columns` does not say what a row holds{f', at `{at[0]}`' if at else ''}"
            hint = 'write `columns = {"x": {"dtype": "float32", "shape": (8,)}, "y": "int64"}`'
            raise ValueError(message, hint) from error

    @property
    def keys(self) -> dict[str, ColumnKeys] | None:
        """What each column holds; None: nobody declared it."""
        said = self.columns if self.columns is not None else self.declared
        if said is None:
            return None
        return {name: each if isinstance(each, ColumnKeys) else ColumnKeys(dtype=each) for name, each in said.items()}

    @property
    def hint(self) -> str:
        """What to do about a row that is not as declared."""
        if self.columns is not None:
            return "give that, or mend `columns` of the source"
        wanted = "give that, or mend" if self.declared is not None else "every row gives the same; say what in"
        return f"{wanted} `columns` of the class `{self.plugin_class}`"

    def open(self) -> Table:
        from declarative_train.components.datasets.plugin_table import PluginTable

        return PluginTable(self)

    def outline(self) -> Table | None:
        """The columns as they are declared, for whoever may not run the code; None: only the code knows them."""
        return None if self.keys is None else _Outline(self.keys)


class _Outline(Table):
    """Columns whose rows nobody may read."""

    num_rows = 1  # columns of a table without rows are not looked at

    def __init__(self, keys: Mapping[str, ColumnKeys]) -> None:
        self.columns = {name: each.column(name) for name, each in keys.items()}

    def read(self, columns: Sequence[str], rows: slice | np.ndarray) -> dict[str, np.ndarray]:
        import numpy as np

        return {name: np.empty((0, *self.columns[name].shape), object) for name in columns}
