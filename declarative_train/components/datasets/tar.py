"""Tar archives of samples -> a table of their files, read where they lie.

The names are those of the format of webdataset: what stands before the first dot of a file's name is the key of a
sample (folders included), what comes after it the column. The index of an archive (where each file begins) is made once
and kept in the user's cache, by path, size and date, and what all archives of a set hold beside it, so that a set is
opened without its indexes: those that are in use are in memory.
"""

from __future__ import annotations

import os
import tarfile
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple

from declarative_train.components.data import Column, Table
from declarative_train.components.datasets.files_dataset import FilesDataset, Paths
from declarative_train.files.cache import Stamp, cache_path, load, save, stamp
from declarative_train.files.errors import SourceError
from declarative_train.files.open_files import (
    OpenFiles,
    by_piece,
    local_path,
    objects,
    open_file,
    packing,
    read_bytes,
    shown,
)

if TYPE_CHECKING:
    import numpy as np

_TEXTS = frozenset({"cls", "label", "text", "transcript", "txt"})
_BLOCK_BYTES = 4 << 20  # of neighbours that are read together
_SPAN_BYTES = 8 << 20  # that are read at once
_GAP_BYTES = 4 << 10  # between files that are read at once
_REMOTE_GAP_BYTES = 64 << 10
_MOST_ROWS = 1 << 20  # of archives whose indexes stay in memory

Made = tuple[list[str], dict[str, list[list[int]]]]
"""The keys, and by column for each key (offset, size), or [-1, 0] where it has no such file."""


class TarDataset(FilesDataset):
    """Samples in tar archives, as webdataset writes them: `cat/17.jpg` and `cat/17.cls` are the columns `jpg` and `cls`
    of the sample `cat/17`. The column `key` is its name.

    Files ending in `.cls`, `.label`, `.text`, `.transcript` and `.txt` are text, others bytes. Rows stand in the order
    of the archives. Archives may not be packed (`.tar.gz`): single files are read where they lie. Those of other
    machines are read once to find where their files begin.
    """

    type: Literal["tar"] = "tar"
    path: Paths
    """An archive, a glob, or a list of them: any fsspec URL, relative to the recipe's file."""

    def open(self) -> Table:
        return TarTable(self.files())


class Index(NamedTuple):
    """`places` by column: (rows, 2) offset and size, -1 where a sample has no such file."""

    keys: np.ndarray
    places: dict[str, np.ndarray]


class Span(NamedTuple):
    """A file of an archive, and the place among the values that are asked for."""

    begin: int
    end: int
    row: int
    name: str
    place: int


class TarTable(Table):
    def __init__(self, files: Sequence[str]) -> None:
        import numpy as np

        self.files = tuple(files)
        self._opened = OpenFiles(_Open)  # read by offset: there is no position that processes would share
        self._indexes: OrderedDict[int, Index] = OrderedDict()
        stamps = [_stamp(path) for path in files]
        for path, each in zip(files, stamps, strict=True):
            if each is not None and local_path(path) is not None:
                self._opened.expect(path, int(each[0]), int(each[1]))  # from here on it may not change
        self._stamps = stamps
        self.fingerprint = None if None in stamps else cache_path("tar", list(files), stamps)
        about = load(self.fingerprint)
        if about is None:
            about = [self._about(number) for number in range(len(files))]
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
                Span(begin, begin + size, row, name, place)
                for name in columns
                if name in index.places
                for place, row, (begin, size) in zip(
                    places.tolist(), inside.tolist(), index.places[name][inside].tolist(), strict=True
                )
                if begin >= 0
            ]
            for together in _together(spans, _GAP_BYTES if local_path(self.files[archive]) else _REMOTE_GAP_BYTES):
                self._read(archive, together, found)
        return found

    def _read(self, archive: int, spans: Sequence[Span], into: dict[str, np.ndarray]) -> None:
        path, first = self.files[archive], spans[0].begin
        content = self._bytes(path, first, max(span.end for span in spans))
        for span in spans:
            part = content[span.begin - first : span.end - first]
            if len(part) < span.end - span.begin:
                key = self._index(archive).keys[span.row]
                raise SourceError("unreadable", f"{shown(path)} ends within `{key}.{span.name}`")
            into[span.name][span.place] = _text(part, path, span.name) if span.name in _TEXTS else part

    def _bytes(self, path: str, begin: int, end: int) -> bytes:
        if local_path(path) is None:
            return read_bytes(path, begin, end)
        try:
            return os.pread(self._opened.get(path).number, end - begin, begin)
        except OSError as error:
            raise SourceError("unreadable", f"cannot read {shown(path)}: {error.strerror}") from error

    def _index(self, archive: int) -> Index:
        """Several threads may come at once."""
        import numpy as np

        found = self._indexes.pop(archive, None)
        if found is None:
            keys, columns = _index_of(self.files[archive], self._stamps[archive])
            found = Index(objects(keys), {name: np.asarray(each, np.int64) for name, each in columns.items()})
        self._indexes[archive] = found
        total = sum(len(each.keys) for each in list(self._indexes.values()))
        while total > _MOST_ROWS and len(self._indexes) > 1:
            try:
                total -= len(self._indexes.popitem(last=False)[1].keys)
            except KeyError:  # another thread was first
                break
        return found

    def _about(self, archive: int) -> dict[str, Any]:
        """What is to be known of it to open the set: `rows`, the row that each of its `blocks` begins with, and by
        column the `sizes` of its files together."""
        import numpy as np

        keys, places = self._index(archive)
        if not len(keys):
            raise SourceError("unreadable", f"{shown(self.files[archive])} holds no file with an ending")
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
        return f"`{self._index(archive).keys[row - self._starts[archive]]}` of {shown(self.files[archive])}"


def _together(spans: Sequence[Span], gap: int) -> Iterator[list[Span]]:
    """Those that lie close to each other, to be read at once."""
    found: list[Span] = []
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
        message = f"a file `.{name}` of {shown(path)} is not UTF-8 text"
        raise SourceError("unreadable", message) from error


class _Open:
    """An open file; closed when nobody reads from it any more."""

    def __init__(self, path: str) -> None:
        self.number = -1
        local = local_path(path)
        assert local is not None
        try:
            self.number = os.open(local, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise SourceError("unreadable", f"cannot open {shown(path)}: {error.strerror}") from error

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)


def _stamp(path: str) -> Stamp | None:
    """Raises SourceError."""
    try:
        return stamp(path)
    except OSError as error:
        raise SourceError("unreadable", f"cannot look at {shown(path)}: {error.strerror}") from error


def _index_of(path: str, stamped: Stamp | None) -> Made:
    """Raises SourceError."""
    if packing(path) is not None:
        message = f"{shown(path)} is packed, and its files cannot be read where they lie"
        raise SourceError("unreadable", message, help="unpack it to a `.tar`: pictures are packed already")
    local = local_path(path)
    kept = None if stamped is None else cache_path("tar", path if local is None else os.path.realpath(local), *stamped)
    if (index := load(kept)) is not None:
        return index[0], index[1]
    try:
        with open_file(path) as file:
            index = _made(file)
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise SourceError("unreadable", f"{shown(path)} is not a whole tar archive: {error}") from error
    except OSError as error:
        raise SourceError("unreadable", f"cannot read {shown(path)}: {error.strerror or error}") from error
    save(kept, index)
    return index


def _made(file: IO[bytes]) -> Made:
    """A file that is cut off within its last member is noticed when that one is read."""
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
