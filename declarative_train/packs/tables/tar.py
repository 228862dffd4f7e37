"""Source that reads tar archives: a table of the files in them. Archives are not unpacked.

In `cat/17.jpg`, as in the webdataset format, `cat/17` is the key of a sample and `jpg` is the column. The index of an
archive (the offset of each file) is cached by path, size and date, and so is a summary with which a source is opened.
"""

from __future__ import annotations

import os
import tarfile
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple

from declarative_train.components.data import Column, FilesDataset, Paths, Table
from declarative_train.files.cache import Stamp, cache_path, load, save, stamp
from declarative_train.files.open_files import (
    OpenFiles,
    by_piece,
    format_path,
    local_path,
    objects,
    open_file,
    packing,
    read_bytes,
)
from declarative_train.files.paths import SourceError

if TYPE_CHECKING:
    import numpy as np

_TEXTS = frozenset({"cls", "label", "text", "transcript", "txt"})
_BLOCK_BYTES = 4 << 20  # size of adjacent files that are read together
_SPAN_BYTES = 8 << 20  # largest size of one read
_GAP_BYTES = 4 << 10  # largest gap between files of one read
_REMOTE_GAP_BYTES = 64 << 10
_MOST_ROWS = 1 << 20  # number of rows in the archives whose indexes stay in memory

BuiltIndex = tuple[list[str], dict[str, list[list[int]]]]
"""Keys, and for each column (offset, size) of each key, or [-1, 0] if it has no such file."""


class TarDataset(FilesDataset):
    """Samples in tar archives in the webdataset format: `cat/17.jpg` and `cat/17.cls` are the columns `jpg` and `cls`
    of the sample `cat/17`. The column `key` is its name.

    Files ending in `.cls`, `.label`, `.text`, `.transcript` and `.txt` are text, others bytes. Rows are in the order of
    the archives. Archives must not be compressed (`.tar.gz`): single files are read from them directly. Remote archives
    are read once to find the offsets of their files.
    """

    type: Literal["tar"] = "tar"
    path: Paths
    """An archive, a glob, or a list of them: any fsspec URL, relative to the recipe's file."""

    def open(self) -> Table:
        return TarTable(self.files())


class TarIndex(NamedTuple):
    """Index of an archive. `keys`: names of the samples. `places`: for each column, by name, a (rows, 2) array of
    offset and size of each file; -1 where a sample has no such file."""

    keys: np.ndarray
    places: dict[str, np.ndarray]


class FileSpan(NamedTuple):
    """File in a tar archive. It is the value of the column `name` in row `row`. `begin`, `end`: range of its bytes in
    the archive. `place`: index of the row among those that one call of `read` returns."""

    begin: int
    end: int
    row: int
    name: str
    place: int


class TarTable(Table):
    def __init__(self, files: Sequence[str]) -> None:
        import numpy as np

        self.files = tuple(files)
        self._opened = OpenFiles(_FileHandle)  # read by offset, so processes do not share a position
        self._indexes: OrderedDict[int, TarIndex] = OrderedDict()
        stamps = [_stamp(path) for path in files]
        for path, each in zip(files, stamps, strict=True):
            if each is not None and local_path(path) is not None:
                self._opened.expect(path, int(each[0]), int(each[1]))  # a change of the file is an error from now on
        self._stamps = stamps
        self.fingerprint = None if None in stamps else cache_path("tar", list(files), stamps)
        about = load(self.fingerprint)
        if about is None:
            about = [self._summarize(number) for number in range(len(files))]
            save(self.fingerprint, about)
        starts, blocks = [0], [np.zeros(1, np.int64)]
        for each in about:
            blocks.append(np.asarray(each["blocks"], np.int64) + starts[-1])
            starts.append(starts[-1] + each["rows"])
        self._starts = starts
        self._sizes: dict[str, int] = {}
        for name, size in (item for each in about for item in each["sizes"].items()):
            self._sizes[name] = self._sizes.get(name, 0) + size
        self.num_rows = starts[-1]
        self.blocks = np.unique(np.concatenate([*blocks, [self.num_rows]]))
        self.columns = {"key": Column("key", "object")}
        self.columns |= {name: Column(name, "object" if name in _TEXTS else "bytes") for name in self._sizes}

    def size_bytes(self, columns: Sequence[str]) -> int | None:
        return sum(self._sizes.get(name, 0) for name in columns)

    def read(self, columns: Sequence[str], rows: slice | np.ndarray) -> dict[str, np.ndarray]:
        import numpy as np

        numbers = np.arange(*rows.indices(self.num_rows)) if isinstance(rows, slice) else rows
        found = {name: np.empty(len(numbers), object) for name in columns}
        for archive, places, inside in by_piece(self._starts, numbers):
            index = self._index(archive)
            if "key" in found:
                found["key"][places] = index.keys[inside]
            spans = [
                FileSpan(begin, begin + size, row, name, place)
                for name in columns
                if name in index.places
                for place, row, (begin, size) in zip(
                    places.tolist(), inside.tolist(), index.places[name][inside].tolist(), strict=True
                )
                if begin >= 0
            ]
            for together in _group_files(spans, _GAP_BYTES if local_path(self.files[archive]) else _REMOTE_GAP_BYTES):
                self._read(archive, together, found)
        return found

    def _read(self, archive: int, spans: Sequence[FileSpan], into: dict[str, np.ndarray]) -> None:
        path, first = self.files[archive], spans[0].begin
        content = self._bytes(path, first, max(span.end for span in spans))
        for span in spans:
            part = content[span.begin - first : span.end - first]
            if len(part) < span.end - span.begin:
                key = self._index(archive).keys[span.row]
                raise SourceError("unreadable", f"{format_path(path)} ends within `{key}.{span.name}`")
            into[span.name][span.place] = _text(part, path, span.name) if span.name in _TEXTS else part

    def _bytes(self, path: str, begin: int, end: int) -> bytes:
        if local_path(path) is None:
            return read_bytes(path, begin, end)
        try:
            return os.pread(self._opened.get(path).number, end - begin, begin)
        except OSError as error:
            raise SourceError("unreadable", f"cannot read {format_path(path)}: {error.strerror}") from error

    def _index(self, archive: int) -> TarIndex:
        """Return the index of archive number `archive`. Thread-safe."""
        import numpy as np

        found = self._indexes.pop(archive, None)
        if found is None:
            keys, columns = _index_of(self.files[archive], self._stamps[archive])
            found = TarIndex(objects(keys), {name: np.asarray(each, np.int64) for name, each in columns.items()})
        self._indexes[archive] = found
        total = sum(len(each.keys) for each in list(self._indexes.values()))
        while total > _MOST_ROWS and len(self._indexes) > 1:
            try:
                total -= len(self._indexes.popitem(last=False)[1].keys)
            except KeyError:  # another thread has removed it
                break
        return found

    def _summarize(self, archive: int) -> dict[str, Any]:
        """Return the summary of an archive. `rows`: how many rows it has. `blocks`: the first row of each block of
        about _BLOCK_BYTES bytes. `sizes`: {column: total size of its files in bytes}."""
        import numpy as np

        keys, places = self._index(archive)
        if not len(keys):
            raise SourceError("unreadable", f"{format_path(self.files[archive])} holds no file with an ending")
        sizes = {name: each[:, 1] for name, each in places.items()}
        before = np.cumsum(sum(sizes.values())) - sum(sizes.values())
        _, blocks = np.unique(before // _BLOCK_BYTES, return_index=True)
        return {
            "rows": len(keys),
            "blocks": blocks.tolist(),
            "sizes": {name: int(each.sum()) for name, each in sizes.items()},
        }

    def place(self, row: int) -> str:
        archive = bisect_right(self._starts, row) - 1
        return f"`{self._index(archive).keys[row - self._starts[archive]]}` of {format_path(self.files[archive])}"


def _group_files(spans: Sequence[FileSpan], gap: int) -> Iterator[list[FileSpan]]:
    """Sort the files by their position in the archive, and divide them into groups; each group is read by one request.
    Between two files of a group there are at most `gap` bytes. A group spans at most _SPAN_BYTES bytes, unless it is a
    single file."""
    found: list[FileSpan] = []
    end = 0
    for span in sorted(spans):
        if found and (span.begin > end + gap or max(span.end, end) - found[0].begin > _SPAN_BYTES):
            yield found
            found = []
        end = max(span.end, end) if found else span.end
        found.append(span)
    if found:
        yield found


def _text(content: bytes, path: str, name: str) -> str:
    try:
        return content.decode().strip()
    except UnicodeDecodeError as error:
        message = f"a file `.{name}` of {format_path(path)} is not UTF-8 text"
        raise SourceError("unreadable", message) from error


class _FileHandle:
    """Open file that is closed when no thread uses it any longer."""

    def __init__(self, path: str) -> None:
        self.number = -1
        local = local_path(path)
        assert local is not None
        try:
            self.number = os.open(local, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise SourceError("unreadable", f"cannot open {format_path(path)}: {error.strerror}") from error

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)


def _stamp(path: str) -> Stamp | None:
    """Return the (size, date) of a file. If they differ later, the file has changed. Return None if the file system
    does not have both. Raises SourceError."""
    try:
        return stamp(path)
    except OSError as error:
        raise SourceError("unreadable", f"cannot read the size of {format_path(path)}: {error.strerror}") from error


def _index_of(path: str, stamped: Stamp | None) -> BuiltIndex:
    """Return the index of an archive from the cache; build and store it if it is not cached. `stamped`: size and date
    of the archive; None: do not use the cache. Raises SourceError."""
    if packing(path) is not None:
        message = f"{format_path(path)} is compressed, so its files cannot be read directly"
        raise SourceError("unreadable", message, help="decompress it to a `.tar`: pictures are compressed already")
    local = local_path(path)
    kept = None if stamped is None else cache_path("tar", path if local is None else os.path.realpath(local), *stamped)
    if (index := load(kept)) is not None:
        return index[0], index[1]
    try:
        with open_file(path) as file:
            index = _build_index(file)
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise SourceError("unreadable", f"{format_path(path)} is not a whole tar archive: {error}") from error
    except OSError as error:
        raise SourceError("unreadable", f"cannot read {format_path(path)}: {error.strerror or error}") from error
    save(kept, index)
    return index


def _build_index(file: IO[bytes]) -> BuiltIndex:
    """Build the index of an archive. If the archive is cut off within its last file, only reading this file raises an
    error."""
    keys: dict[str, int] = {}
    columns: dict[str, dict[int, list[int]]] = {}
    with tarfile.open(fileobj=file, mode="r:") as archive:
        while (member := archive.next()) is not None:
            archive.members = []  # type: ignore[attr-defined]  # else it keeps all of them
            folder, _, name = member.name.removeprefix("./").rpartition("/")
            stem, dot, ending = name.partition(".")
            if not member.isreg() or not dot or not stem or not ending:
                continue
            row = keys.setdefault(f"{folder}/{stem}" if folder else stem, len(keys))
            places = columns.setdefault(ending.lower(), {})
            if row in places:
                raise ValueError(f"it holds `{member.name}` twice")
            places[row] = [member.offset_data, member.size]
    return list(keys), {
        name: [places.get(row, [-1, 0]) for row in range(len(keys))] for name, places in columns.items()
    }
