"""Table of files that consist of blocks (row groups of Parquet, record batches of Arrow). A block is read when one of
its rows is needed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from declarative_train.components.data import LISTS, MESSAGES, Column, Table
from declarative_train.core.secrets import masked
from declarative_train.files.cache import Stamp, cache_path, load, save, stamp
from declarative_train.files.open_files import OpenFiles, by_piece, format_path, local_path
from declarative_train.files.paths import SourceError

if TYPE_CHECKING:
    import numpy as np

_CACHE_BYTES = 256 << 20  # decoded blocks in memory, per process


class BlockFormat(ABC):
    """Interface to a format of files that are read in blocks. `kind`: name of the format. `block`: what messages call a
    block, such as `row group`."""

    kind: ClassVar[str]
    block: ClassVar[str]

    @abstractmethod
    def open(self, path: str) -> Any:
        """Open a file for use by one thread. Return the opened file, which is the argument `opened` of the other
        methods. Raises SourceError."""

    @abstractmethod
    def schema(self, opened: Any) -> Any:
        """Return the pyarrow schema of an opened file."""

    @abstractmethod
    def footer(self, opened: Any) -> dict[str, Any]:
        """Return {"rows": number of rows of each block, "names": names of the columns, "sizes": {column: uncompressed
        bytes}}."""

    @abstractmethod
    def read(self, opened: Any, number: int, names: list[str], most: int | None) -> Any:
        """Return the columns `names` of the block with index `number` in the file, as an Arrow table. `most`: how many
        rows of the block to return, counted from its first row; None: all. Raises OSError and ArrowInvalid."""


class BlockTable(Table):
    """Table of files with blocks, which a `BlockFormat` reads. When one row of a block is needed, the whole block is
    read."""

    def __init__(self, files: Sequence[str], form: BlockFormat) -> None:
        import numpy as np

        self.files = tuple(files)
        self._form = form
        self._opened = OpenFiles(form.open, own_after_fork=True, own_by_thread=True)
        self._cache: OrderedDict[tuple[int, str], np.ndarray] = OrderedDict()
        self._added_bytes = 0  # since the last measurement of the cache
        self._groups: list[tuple[str, int]] = []  # (file, number of the block in it)
        self._starts = [0]
        self._file_starts: list[int] = []
        index = Footers(files, self._opened, form)
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

    def take_lists(self, names: Sequence[str]) -> None:
        from declarative_train.components.datasets.arrow_columns import with_lists

        if any(self.columns[name].shape for name in names if name in self.columns):
            schema = self._form.schema(self._opened.get(self.files[0]))
            self.columns = with_lists(self.columns, names, schema)
            self._cache.clear()

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
            for name, values in self._read_cached(group, list(parts)).items():
                parts[name].append(values[inside])
        if isinstance(rows, slice) or not places:
            return {name: _concatenate(found) if found else self._none(name) for name, found in parts.items()}
        return {name: _scatter(_concatenate(found), np.concatenate(places)) for name, found in parts.items()}

    def read_once(self, columns: Sequence[str], rows: slice) -> dict[str, np.ndarray]:
        from declarative_train.components.datasets.arrow_columns import to_numpy

        parts: dict[str, list[np.ndarray]] = {name: [] for name in columns}
        for group, _, inside in self._runs(rows):
            path, number = self._groups[group]
            size = self._starts[group + 1] - self._starts[group]
            read = self._read_group(path, number, list(parts), inside.stop if 2 * inside.stop < size else None)
            for name, values in parts.items():
                values.append(to_numpy(self.columns[name], read.column(name), path)[inside])
        return {name: _concatenate(found) if found else self._none(name) for name, found in parts.items()}

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

        column = self.columns[name]
        return np.empty((0, *column.shape), object if column.dtype in (MESSAGES, LISTS) else column.dtype)

    def _read_cached(self, group: int, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Return a dict from each of the columns `names` to its numpy array for one block. `group`: index of the block
        in the table. Recently used blocks stay in memory. Thread-safe."""
        from declarative_train.components.datasets.arrow_columns import to_numpy

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
        if self._added_bytes > _CACHE_BYTES // 16:  # only from time to time: there may be very many small groups
            self._added_bytes, total = 0, sum(array.nbytes for array in list(self._cache.values()))
            while total > _CACHE_BYTES and len(self._cache) > 1:
                total -= self._cache.popitem(last=False)[1].nbytes
        return found

    def _read_group(self, path: str, number: int, names: list[str], most: int | None = None) -> Any:
        """Return the columns `names` of the block with index `number` in the file `path`, as an Arrow table. `most`:
        how many rows of the block to return, counted from its first row; None: all. Raises SourceError."""
        import pyarrow as pa

        from declarative_train.components.datasets.arrow_columns import without_views

        try:
            return without_views(self._form.read(self._opened.get(path), number, names, most))
        except (pa.ArrowInvalid, OSError) as error:
            what = ", ".join(f"`{name}`" for name in names[:3])
            message = f"cannot read {what} in {self._form.block} {number} of {format_path(path)}: {reason(error)}"
            raise SourceError("unreadable", message) from error

    def place(self, row: int) -> str:
        from declarative_train.components.datasets.arrow_columns import place

        return place(self.files, self._file_starts, row)


class Footers:
    """Summary of each file of a table: the rows of its blocks, its columns and their sizes. The summaries are cached on
    disk, and used again while the size and date of the file are the same. With them, a table can be opened without
    reading its files."""

    def __init__(self, files: Sequence[str], opened: OpenFiles[Any], form: BlockFormat) -> None:
        from declarative_train.components.datasets.arrow_columns import check_distinct, check_same_columns

        self._files = files
        self._opened = opened
        self._form = form
        self._place = cache_path(form.kind, list(files))
        before = load(self._place) or {"files": {}}
        found: dict[str, Any] = {}
        self._is_new = len(before["files"]) != len(files)
        for path in files:
            now, known = self._stamp(path), before["files"].get(path)
            if known is None or now is None or known["stamp"] != now:
                self._is_new = True
                known = {"stamp": now, **form.footer(opened.get(path))}
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
        self.fingerprint = None if None in stamps else cache_path(form.kind, list(files), stamps)

    def _stamp(self, path: str) -> Stamp | None:
        try:
            return stamp(path)
        except OSError as error:
            raise SourceError("unreadable", f"cannot look at {format_path(path)}: {error.strerror}") from error

    @property
    def sizes(self) -> dict[str, int]:
        """Uncompressed size of each column in bytes, by name."""
        total: dict[str, int] = {}
        for path in self._files:
            for name, size in self._found[path]["sizes"].items():
                total[name] = total.get(name, 0) + size
        return total

    def columns(self, first: Callable[[str], Any]) -> tuple[dict[str, Column], dict[str, str]]:
        """Return ({name: column} of the columns that can be read, {name: reason} of all others). `first`: function that
        returns one value of the column with a name, or None if all its values are missing."""
        from declarative_train.components.datasets.arrow_columns import describe_all

        if self._described is None:
            columns, left_out = describe_all(self._form.schema(self._opened.get(self._files[0])), first)
            self._described = {"columns": [list(column) for column in columns.values()], "left_out": left_out}
        made = [Column(name, dtype, tuple(shape), most) for name, dtype, shape, most in self._described["columns"]]
        return {column.name: column for column in made}, dict(self._described["left_out"])

    def keep(self) -> None:
        if self._is_new and self.fingerprint is not None:
            save(self._place, {"files": self._found, "columns": self._described})


def _concatenate(parts: Sequence[np.ndarray]) -> np.ndarray:
    import numpy as np

    return np.concatenate(parts) if len(parts) > 1 else parts[0]


def _scatter(gathered: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return the values of rows in the order in which the rows were requested. `gathered`: the values in the order of
    the files. `places`: for each of these values, the position of its row among the requested rows."""
    import numpy as np

    found = np.empty_like(gathered)
    found[places] = gathered
    return found


def reason(error: BaseException) -> str:
    return masked(str(error).splitlines()[0])[:200]
