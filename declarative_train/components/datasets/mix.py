"""Mixture as a source: its table is the tables of several sources, one after the other. The order of the samples
(data/mixture.py) decides how often each source is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny, StringConstraints, model_validator

from declarative_train.components.component import Keys
from declarative_train.components.data import LISTS, MESSAGES, Column, Dataset, Table
from declarative_train.files.paths import SourceError

if TYPE_CHECKING:
    import numpy as np

_OBJECTS = ("object", "bytes", MESSAGES, LISTS)
Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]


def _read(value: Any) -> Any:
    """Return the source that the dict `value` of a plan describes. Return `value` unchanged if it does not describe a
    source."""
    from declarative_train.components.datasets import DATASETS

    if isinstance(value, dict) and ("plugin" in value or value.get("type") in DATASETS):
        return DATASETS.read(value)
    return value


class MixMember(Keys):
    """Recipe keys of one source in a mixture: a value under `of` of the source type `mix`."""

    source: Annotated[SerializeAsAny[Dataset], BeforeValidator(_read)]
    """Source of its rows."""
    weight: Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)] | None = None
    """Its share of the samples, relative to the weights of the others. Left out for all: each sample once per epoch."""


class MixDataset(Dataset):
    """Rows of several sources, mixed by weight. At any point of the training, the samples taken so far are divided
    among the sources by weight, up to a difference of less than 2.

    An epoch has as many samples as all sources together. A source that is too small for its weight is repeated, each
    time in another order. The columns are those that all sources have. The sets of `data.split` are taken from each
    source separately, or from one source with `of: NAME`.
    """

    type: Literal["mix"] = "mix"
    of: Annotated[dict[Name, MixMember], Field(min_length=1)]
    """The sources, by name."""

    @model_validator(mode="after")
    def _weights_of_all_or_none(self) -> MixDataset:
        without = [name for name, member in self.of.items() if member.weight is None]
        if without and len(without) < len(self.of):
            raise ValueError(f"`{without[0]}` has no `weight`, and others have: give one for each, or for none")
        nested = [name for name, member in self.of.items() if isinstance(member.source, MixDataset)]
        if nested:
            raise ValueError(f"`{nested[0]}` is a mixture itself: name its sources here, with the others")
        return self

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(path for member in self.of.values() for path in member.source.paths)

    def open(self) -> Table:
        tables = {}
        for name, member in self.of.items():
            try:
                tables[name] = member.source.open()
            except SourceError as error:
                error.below = f".of.{name}.source"
                raise
        return MixTable(tables)


class MixTable(Table):
    """Tables concatenated by rows. The columns are those that all tables have."""

    def __init__(self, tables: dict[str, Table]) -> None:
        """Concatenate the tables. `tables`: the table of each source by name. Raises SourceError if they have no column
        in common."""
        import numpy as np

        self.tables = tuple(tables.values())
        self._starts = [0, *accumulate(table.num_rows for table in self.tables)]
        self.members = tuple(zip(tables, self._starts, strict=False))
        self.num_rows = self._starts[-1]
        self.files = tuple(dict.fromkeys(path for table in self.tables for path in table.files))
        self.read_with = tuple(dict.fromkeys(path for table in self.tables for path in table.read_with))
        self.skipped = tuple(each for table in self.tables for each in table.skipped)
        self.columns, self.left_out = _find_common_columns(tables)
        self._tables = tables
        if any(table.blocks is not None for table in self.tables):
            begins = [
                _list_block_starts(table) + start for table, start in zip(self.tables, self._starts, strict=False)
            ]
            self.blocks = np.unique(np.concatenate([*begins, [self.num_rows]])).astype(np.int64)
        prints = [table.fingerprint for table in self.tables]
        self.fingerprint = None if None in prints else repr((list(tables), prints))

    def take_lists(self, names: Sequence[str]) -> None:
        for table in self.tables:
            table.take_lists(names)
        self.columns, self.left_out = _find_common_columns(self._tables)

    def read(self, columns: Sequence[str], rows: slice | np.ndarray) -> dict[str, np.ndarray]:
        import numpy as np

        if isinstance(rows, slice):
            return self._in_order(columns, rows, once=False)
        rows = np.asarray(rows, np.int64)
        member = np.searchsorted(self._starts, rows, side="right") - 1
        present = np.unique(member).tolist()
        if len(present) == 1:
            return self._convert(columns, self.tables[present[0]].read(columns, rows - self._starts[present[0]]))
        found: dict[str, np.ndarray] = {}
        for each in present:
            mine = member == each
            read = self._convert(columns, self.tables[each].read(columns, rows[mine] - self._starts[each]))
            for name, values in read.items():
                whole = found.get(name)
                if whole is None:
                    whole = np.empty((len(rows), *values.shape[1:]), values.dtype)
                elif whole.dtype != values.dtype:  # integers that became floats because some are missing
                    whole = whole.astype(np.result_type(whole, values))
                whole[mine] = values
                found[name] = whole
        return found or self._convert(columns, self.tables[0].read(columns, rows))

    def read_once(self, columns: Sequence[str], rows: slice) -> dict[str, np.ndarray]:
        return self._in_order(columns, rows, once=True)

    def _in_order(self, columns: Sequence[str], rows: slice, *, once: bool) -> dict[str, np.ndarray]:
        import numpy as np

        start, stop, _ = rows.indices(self.num_rows)
        pieces = []
        for table, begin, part in self._stretches(start, stop):
            inside = slice(part.start - begin, part.stop - begin)
            read = table.read_once(columns, inside) if once else table.read(columns, inside)
            pieces.append(self._convert(columns, read))
        if len(pieces) == 1:
            return pieces[0]
        if not pieces:
            return self._convert(columns, self.tables[0].read(columns, slice(0, 0)))
        return {name: np.concatenate([piece[name] for piece in pieces]) for name in columns}

    def _stretches(self, start: int, stop: int) -> Iterator[tuple[Table, int, slice]]:
        for table, begin in zip(self.tables, self._starts, strict=False):
            first, last = max(start, begin), min(stop, begin + table.num_rows)
            if first < last:
                yield table, begin, slice(first, last)

    def read_runs(self, columns: Sequence[str], starts: np.ndarray, length: int) -> dict[str, np.ndarray]:
        """Return a dict from column to the values (N, length, ...) of N runs of consecutive rows, as `Table.read_runs`
        does. `starts`: first row of each run. `length`: rows of a run, which must all be in the same source."""
        import numpy as np

        member = np.searchsorted(self._starts, starts, side="right") - 1
        found: dict[str, np.ndarray] = {}
        for each in np.unique(member).tolist():
            mine = member == each
            read = self.tables[each].read_runs(columns, starts[mine] - self._starts[each], length)
            for name, values in self._convert(columns, read).items():
                if name not in found:
                    found[name] = np.empty((len(starts), *values.shape[1:]), values.dtype)
                found[name][mine] = values
        return found

    def _convert(self, columns: Sequence[str], read: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the columns that were read from one source, with the dtypes that they have in the mixture. `read`: a
        dict from column to the values as they were read."""
        found = {}
        for name in columns:
            values, wanted = read[name], self.columns[name].dtype
            is_exact = wanted in _OBJECTS or values.dtype.kind == "f"
            found[name] = values if is_exact or str(values.dtype) == wanted else values.astype(wanted)
        return found

    def size_bytes(self, columns: Sequence[str]) -> int | None:
        sizes = [table.size_bytes(columns) for table in self.tables]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def place(self, row: int) -> str:
        import numpy as np

        each = int(np.searchsorted(self._starts, row, side="right")) - 1
        return self.tables[each].place(row - self._starts[each])


def _list_block_starts(table: Table) -> np.ndarray:
    """Return the index of the first row of each block of a table. A table without blocks counts as one block."""
    import numpy as np

    return np.zeros(1, np.int64) if table.blocks is None else np.asarray(table.blocks, np.int64)[:-1]


def _find_common_columns(tables: dict[str, Table]) -> tuple[dict[str, Column], dict[str, str]]:
    """Return the columns that all tables have, by name, and {name of another column: why it is left out}. Raises
    SourceError if there is no common column."""
    columns: dict[str, Column] = {}
    names = dict.fromkeys(name for table in tables.values() for name in (*table.columns, *table.left_out))
    left_out: dict[str, str] = {}
    for name in names:
        lacking = next((source for source, table in tables.items() if name not in table.columns), None)
        if lacking is not None:
            left_out[name] = tables[lacking].left_out.get(name) or f"`{lacking}` does not have it"
            continue
        found = _join_columns([table.columns[name] for table in tables.values()])
        if found is None:
            kinds = {source: _kind(table.columns[name]) for source, table in tables.items()}
            first, *others = kinds.items()
            other = next(each for each in others if each[1] != first[1])
            left_out[name] = f"it is {first[1]} in `{first[0]}` and {other[1]} in `{other[0]}`"
        else:
            columns[name] = found
    if not columns and names:
        what = "; ".join(f"`{source}` has {_list_columns(table)}" for source, table in tables.items())
        raise SourceError("different_columns", f"the sources have no column in common: {what}")
    return columns, left_out


def _join_columns(columns: list[Column]) -> Column | None:
    """Return a column whose type can hold the values of all `columns`. Return None if there is no such type."""
    import numpy as np

    first = columns[0]
    if any(column.shape != first.shape for column in columns):
        return None
    kinds = {column.dtype for column in columns}
    sizes = [column.num_values for column in columns]
    most = None if None in sizes else max(size for size in sizes if size is not None)
    if len(kinds) == 1:
        return first._replace(num_values=most)
    if kinds & {*_OBJECTS, "bool", "datetime64[ns]"}:
        return None
    return Column(first.name, str(np.result_type(*map(np.dtype, kinds))), first.shape, most)


def _kind(column: Column) -> str:
    what = {"object": "text", "bytes": "files", "bool": "bool", MESSAGES: "lists of messages", LISTS: "lists"}.get(
        column.dtype, column.dtype
    )
    return f"{what} {list(column.shape)}" if column.shape else what


def _list_columns(table: Table) -> str:
    names = [f"`{name}`" for name in table.columns]
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
