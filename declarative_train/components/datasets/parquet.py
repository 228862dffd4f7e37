"""Parquet files -> a table that reads row groups when rows of them are asked for."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from declarative_train.components.data import Column, SourceError, Table
from declarative_train.components.datasets.files import (
    FilesDataset,
    OpenFiles,
    by_piece,
    check_beginning,
    local_path,
    open_file,
    shown,
)
from declarative_train.components.datasets.kept import Stamp, load, place_of, save, stamp

if TYPE_CHECKING:
    import numpy as np

_CACHE_BYTES = 256 << 20  # decoded row groups that a process keeps


class ParquetDataset(FilesDataset):
    """Rows of Parquet files. Only the columns that fields use are read; data larger than memory are read by row group.

    Several files are one table, file after file.
    """

    type: Literal["parquet"] = "parquet"

    def open(self) -> Table:
        return ParquetTable(self.files())


class ParquetTable(Table):
    def __init__(self, files: Sequence[str]) -> None:
        import numpy as np

        self.files = tuple(files)
        self._opened = OpenFiles(_open, own_after_fork=True, own_by_thread=True)
        self._cache: OrderedDict[tuple[int, str], np.ndarray] = OrderedDict()
        self._added_bytes = 0  # since the cache was measured
        self._groups: list[tuple[str, int]] = []  # (file, number of the row group in it)
        self._starts = [0]
        self._file_starts: list[int] = []
        index = Footers(files, self._opened)
        for path, rows in zip(files, index.rows, strict=True):
            self._file_starts.append(self._starts[-1])
            for number, num_rows in enumerate(rows):
                if num_rows:
                    self._groups.append((path, number))
                    self._starts.append(self._starts[-1] + num_rows)
        self.num_rows = self._starts[-1]
        self.blocks = np.asarray(self._starts, np.int64)
        self.fingerprint = index.fingerprint
        self.columns, self.left_out = index.columns(self._first)
        self._sizes = index.sizes
        index.keep()

    def _first(self, name: str) -> Any:
        for path, number in self._groups:
            present = self._read_group(path, number, [name]).column(name).drop_null()
            if len(present):
                return present[0].as_py()
        return None

    def read(self, columns: Sequence[str], rows: slice | np.ndarray) -> dict[str, np.ndarray]:
        import numpy as np

        parts: dict[str, list[np.ndarray]] = {name: [] for name in columns}
        places: list[Any] = []
        for group, place, inside in self._runs(rows) if isinstance(rows, slice) else by_piece(self._starts, rows):
            places.append(place)
            for name, values in self._group(group, list(parts)).items():
                parts[name].append(values[inside])
        if isinstance(rows, slice) or not places:
            return {name: _joined(found) if found else self._none(name) for name, found in parts.items()}
        return {name: _put(_joined(found), np.concatenate(places)) for name, found in parts.items()}

    def read_once(self, columns: Sequence[str], rows: slice) -> dict[str, np.ndarray]:
        from declarative_train.components.datasets.arrow import to_numpy

        parts: dict[str, list[np.ndarray]] = {name: [] for name in columns}
        for group, _, inside in self._runs(rows):
            path, number = self._groups[group]
            size = self._starts[group + 1] - self._starts[group]
            read = self._read_group(path, number, list(parts), inside.stop if 2 * inside.stop < size else None)
            for name, values in parts.items():
                values.append(to_numpy(self.columns[name], read.column(name), path)[inside])
        return {name: _joined(found) if found else self._none(name) for name, found in parts.items()}

    def size_bytes(self, columns: Sequence[str]) -> int | None:
        return sum(self._sizes.get(name, 0) for name in columns)

    def _runs(self, rows: slice) -> Iterator[tuple[int, None, slice]]:
        start, stop, _ = rows.indices(self.num_rows)
        group = bisect_right(self._starts, start) - 1
        while start < stop:
            begin, end = self._starts[group], min(self._starts[group + 1], stop)
            yield group, None, slice(start - begin, end - begin)
            start, group = end, group + 1

    def _none(self, name: str) -> np.ndarray:
        import numpy as np

        return np.empty((0, *self.columns[name].shape), self.columns[name].dtype)

    def _group(self, group: int, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Columns of one row group; the last used ones stay decoded. Several threads may come at once."""
        from declarative_train.components.datasets.arrow import to_numpy

        found: dict[str, np.ndarray] = {}
        for name in names:
            if (kept := self._cache.pop((group, name), None)) is not None:
                found[name] = self._cache[group, name] = kept
        missing = [name for name in names if name not in found]
        if not missing:
            return found
        path, number = self._groups[group]
        read = self._read_group(path, number, missing)
        for name in missing:
            found[name] = self._cache[group, name] = to_numpy(self.columns[name], read.column(name), path)
            self._added_bytes += found[name].nbytes
        if self._added_bytes > _CACHE_BYTES // 16:  # now and then: of small groups there are very many
            self._added_bytes, total = 0, sum(array.nbytes for array in list(self._cache.values()))
            while total > _CACHE_BYTES and len(self._cache) > 1:
                total -= self._cache.popitem(last=False)[1].nbytes
        return found

    def _read_group(self, path: str, number: int, names: list[str], most: int | None = None) -> Any:
        """`most`: only so many of its first rows are needed."""
        import pyarrow as pa

        try:
            if most is not None:
                opened = self._opened.get(path)
                first = next(opened.iter_batches(most, row_groups=[number], columns=names, use_threads=False))
                return pa.Table.from_batches([first])
            return self._opened.get(path).read_row_group(number, columns=names, use_threads=False)
        except (pa.ArrowInvalid, OSError) as error:
            what = ", ".join(f"`{name}`" for name in names[:3])
            message = f"cannot read {what} in row group {number} of {shown(path)}: {_reason(error)}"
            raise SourceError("unreadable", message) from error

    def place(self, row: int) -> str:
        from declarative_train.components.datasets.arrow import place

        return place(self.files, self._file_starts, row)


class Footers:
    """What the footers of files say. They are read once: what they said is kept by path, size and date."""

    def __init__(self, files: Sequence[str], opened: OpenFiles[Any]) -> None:
        from declarative_train.components.datasets.arrow import check_distinct, check_same_columns

        self._files = files
        self._opened = opened
        self._place = place_of("parquet", list(files))
        before = load(self._place) or {"files": {}}
        found: dict[str, Any] = {}
        self._is_new = len(before["files"]) != len(files)
        for path in files:
            now, known = self._stamp(path), before["files"].get(path)
            if known is None or now is None or known["stamp"] != now:
                self._is_new = True
                known = {"stamp": now, **_footer(opened.get(path))}
            elif local_path(path) is not None:
                opened.expect(path, int(now[0]), int(now[1]))
            found[path] = known
        self._found = found
        self._described = None if self._is_new else before["columns"]
        names = found[files[0]]["names"]
        check_distinct(files[0], names)
        for path in files:
            if found[path]["names"] != names:
                check_same_columns(files[0], names, path, found[path]["names"])
        self.rows: list[list[int]] = [found[path]["rows"] for path in files]
        stamps = [found[path]["stamp"] for path in files]
        self.fingerprint = None if None in stamps else place_of("parquet", list(files), stamps)

    def _stamp(self, path: str) -> Stamp | None:
        try:
            return stamp(path)
        except OSError as error:
            raise SourceError("unreadable", f"cannot look at {shown(path)}: {error.strerror}") from error

    @property
    def sizes(self) -> dict[str, int]:
        """By column, unpacked."""
        total: dict[str, int] = {}
        for path in self._files:
            for name, size in self._found[path]["sizes"].items():
                total[name] = total.get(name, 0) + size
        return total

    def columns(self, first: Callable[[str], Any]) -> tuple[dict[str, Column], dict[str, str]]:
        """`first`: a present value of a column."""
        from declarative_train.components.datasets.arrow import describe_all

        if self._described is None:
            columns, left_out = describe_all(self._opened.get(self._files[0]).schema_arrow, first)
            self._described = {"columns": [list(column) for column in columns.values()], "left_out": left_out}
        made = [Column(name, dtype, tuple(shape), most) for name, dtype, shape, most in self._described["columns"]]
        return {column.name: column for column in made}, dict(self._described["left_out"])

    def keep(self) -> None:
        if self._is_new and self.fingerprint is not None:
            save(self._place, {"files": self._found, "columns": self._described})


def _footer(opened: Any) -> dict[str, Any]:
    metadata = opened.metadata
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    sizes: dict[str, int] = {}
    for group in groups:
        for number in range(group.num_columns):
            column = group.column(number)
            name = column.path_in_schema.partition(".")[0]
            sizes[name] = sizes.get(name, 0) + column.total_uncompressed_size
    return {"rows": [group.num_rows for group in groups], "names": opened.schema_arrow.names, "sizes": sizes}


def _open(path: str) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    local = local_path(path)
    try:
        if local is not None:
            return parquet.ParquetFile(local, memory_map=True)
        return parquet.ParquetFile(open_file(path))
    except (pa.ArrowInvalid, OSError) as error:
        check_beginning(path, "a Parquet file", b"PAR1")
        raise SourceError("unreadable", f"cannot read {shown(path)}: {_reason(error)}") from error


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    import numpy as np

    return np.concatenate(parts) if len(parts) > 1 else parts[0]


def _put(gathered: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Values in the order of the files, each to its place."""
    import numpy as np

    found = np.empty_like(gathered)
    found[places] = gathered
    return found


def _reason(error: BaseException) -> str:
    return str(error).splitlines()[0][:200]
