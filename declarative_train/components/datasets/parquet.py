"""Parquet files -> a table that reads row groups when rows of them are asked for."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from declarative_train.components.component import Dataset, SourceError, Table
from declarative_train.components.datasets.files import (
    Paths,
    as_tuple,
    check_beginning,
    expand,
    local_path,
    open_file,
    shown,
)

if TYPE_CHECKING:
    import numpy as np

_CACHE_BYTES = 256 << 20  # decoded row groups that a process keeps


class ParquetDataset(Dataset):
    """Rows of Parquet files. Only the columns that fields use are read; data larger than memory are read by row group.

    Several files are one table, file after file.
    """

    type: Literal["parquet"] = "parquet"
    path: Paths
    """A file, a glob, or a list of them: any fsspec URL, relative to the recipe's file."""

    @property
    def paths(self) -> tuple[str, ...]:
        return as_tuple(self.path)

    def open(self) -> Table:
        return ParquetTable(expand(self.paths))


class ParquetTable(Table):
    def __init__(self, files: Sequence[str]) -> None:
        from declarative_train.components.datasets.arrow import check_distinct, check_same_columns, describe_all

        self.files = tuple(files)
        self._opened: dict[tuple[int, str], Any] = {}  # by process: a forked one must not share file positions
        self._cache: OrderedDict[tuple[int, str], np.ndarray] = OrderedDict()
        self._groups: list[tuple[str, int]] = []  # (file, number of the row group in it)
        self._starts = [0]
        self._file_starts: list[int] = []
        first = self._open(files[0]).schema_arrow
        check_distinct(files[0], first.names)
        for path in files:
            opened = self._open(path)
            check_same_columns(files[0], first.names, path, opened.schema_arrow.names)
            self._file_starts.append(self._starts[-1])
            for number in range(opened.metadata.num_row_groups):
                num_rows = opened.metadata.row_group(number).num_rows
                if num_rows:
                    self._groups.append((path, number))
                    self._starts.append(self._starts[-1] + num_rows)
        self.num_rows = self._starts[-1]
        self.columns, self.left_out = describe_all(first, self._first)

    def _open(self, path: str) -> Any:
        import pyarrow as pa
        from pyarrow import parquet

        key = (os.getpid(), path)
        if key not in self._opened:
            check_beginning(path, "a Parquet file", b"PAR1")
            local = local_path(path)
            try:
                if local is not None:
                    self._opened[key] = parquet.ParquetFile(local, memory_map=True)
                else:
                    self._opened[key] = parquet.ParquetFile(open_file(path))
            except (pa.ArrowInvalid, OSError) as error:
                raise SourceError("unreadable", f"cannot read {shown(path)}: {_reason(error)}") from error
        return self._opened[key]

    def _first(self, name: str) -> Any:
        for path, number in self._groups:
            present = self._read_group(path, number, name).drop_null()
            if len(present):
                return present[0].as_py()
        return None

    def read(self, columns: Sequence[str], rows: slice | np.ndarray) -> dict[str, np.ndarray]:
        import numpy as np

        if isinstance(rows, slice):
            start, stop, _ = rows.indices(self.num_rows)
            return {name: self._read_range(name, start, stop) for name in columns}
        group_of = np.searchsorted(self._starts, rows, side="right") - 1
        return {name: self._read_rows(name, rows, group_of) for name in columns}

    def _read_range(self, name: str, start: int, stop: int) -> np.ndarray:
        import numpy as np

        parts = []
        group = bisect_right(self._starts, start) - 1
        while start < stop:
            begin, end = self._starts[group], min(self._starts[group + 1], stop)
            parts.append(self._group(group, name)[start - begin : end - begin])
            start, group = end, group + 1
        return np.concatenate(parts) if len(parts) > 1 else parts[0] if parts else self._none(name)

    def _none(self, name: str) -> np.ndarray:
        import numpy as np

        return np.empty((0, *self.columns[name].shape), self.columns[name].dtype)

    def _read_rows(self, name: str, rows: np.ndarray, group_of: np.ndarray) -> np.ndarray:
        import numpy as np

        if not len(rows):
            return self._none(name)
        parts, places = [], []
        for group in np.unique(group_of):
            where = np.flatnonzero(group_of == group)
            parts.append(self._group(int(group), name)[rows[where] - self._starts[group]])
            places.append(where)
        gathered = np.concatenate(parts)
        found = np.empty_like(gathered)
        found[np.concatenate(places)] = gathered
        return found

    def _group(self, group: int, name: str) -> np.ndarray:
        """One column of one row group; the last used ones stay decoded. Several threads may come at once."""
        from declarative_train.components.datasets.arrow import to_numpy

        key = (group, name)
        kept = self._cache.pop(key, None)
        if kept is not None:
            self._cache[key] = kept
            return kept
        path, number = self._groups[group]
        values = to_numpy(self.columns[name], self._read_group(path, number, name), path)
        self._cache[key] = values
        while sum(array.nbytes for array in list(self._cache.values())) > _CACHE_BYTES and len(self._cache) > 1:
            self._cache.popitem(last=False)
        return values

    def _read_group(self, path: str, number: int, name: str) -> Any:
        import pyarrow as pa

        try:
            opened = self._open(path)
            return opened.read_row_group(number, columns=[name], use_threads=False).column(name)
        except (pa.ArrowInvalid, OSError) as error:
            raise SourceError(
                "unreadable", f"cannot read `{name}` in row group {number} of {shown(path)}: {_reason(error)}"
            ) from error

    def place(self, row: int) -> str:
        position = bisect_right(self._file_starts, row) - 1
        return f"row {row - self._file_starts[position] + 1} of {shown(self.files[position])}"


def _reason(error: BaseException) -> str:
    return str(error).splitlines()[0][:200]
