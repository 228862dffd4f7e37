"""Tar archives of samples -> a table of their files, read where they lie.

The names are those of the format of webdataset: what stands before the first dot of a file's name is the key of a
sample (folders included), what comes after it the column. The index of an archive (where each file begins) is made once
and kept in the user's cache, by path, size and date.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Literal

from declarative_train.components.data import Column, SourceError, Table
from declarative_train.components.datasets.files import (
    FilesDataset,
    OpenFiles,
    Paths,
    by_piece,
    local_path,
    objects,
    packing,
    shown,
)
from declarative_train.components.datasets.kept import load, place_of, save

if TYPE_CHECKING:
    import numpy as np

_TEXTS = frozenset({"cls", "label", "text", "transcript", "txt"})
Index = tuple[list[str], dict[str, list[list[int]]]]
"""The keys, and by column for each key (offset, size), or nothing where it has no such file."""


class TarDataset(FilesDataset):
    """Samples in tar archives, as webdataset writes them: `cat/17.jpg` and `cat/17.cls` are the columns `jpg` and `cls`
    of the sample `cat/17`. The column `key` is its name.

    Files ending in `.cls`, `.label`, `.text`, `.transcript` and `.txt` are text, others bytes. Rows stand in the order
    of the archives. Archives may not be packed (`.tar.gz`): single files are read where they lie.
    """

    type: Literal["tar"] = "tar"
    path: Paths
    """An archive, a glob, or a list of them, on this machine, relative to the recipe's file."""

    def open(self) -> Table:
        return TarTable(self.files())


class TarTable(Table):
    def __init__(self, files: Sequence[str]) -> None:
        import numpy as np

        self.files = tuple(files)
        self._opened = OpenFiles(_Open)  # read by offset: there is no position that processes would share
        self._starts = [0]
        self._keys: list[np.ndarray] = []
        self._places: list[dict[str, np.ndarray]] = []
        endings: dict[str, None] = {}
        for path in files:
            self._opened.get(path)  # from here on it may not change
            keys, columns = _index(path)
            if not keys:
                raise SourceError("unreadable", f"{shown(path)} holds no file with an ending")
            self._keys.append(objects(keys))
            self._places.append({name: np.asarray(places, np.int64) for name, places in columns.items()})
            self._starts.append(self._starts[-1] + len(keys))
            endings |= dict.fromkeys(columns)
        self.num_rows = self._starts[-1]
        self.columns = {"key": Column("key", "object")}
        self.columns |= {name: Column(name, "object" if name in _TEXTS else "bytes") for name in endings}

    def read(self, columns: Sequence[str], rows: slice | np.ndarray) -> dict[str, np.ndarray]:
        import numpy as np

        numbers = np.arange(*rows.indices(self.num_rows)) if isinstance(rows, slice) else rows
        found = {name: np.empty(len(numbers), object) for name in columns}
        for archive, places, inside in by_piece(self._starts, numbers):
            for name in columns:
                if name == "key":
                    found[name][places] = self._keys[archive][inside]
                else:
                    self._read(archive, name, inside, places, found[name])
        return found

    def _read(self, archive: int, name: str, inside: np.ndarray, places: np.ndarray, into: np.ndarray) -> None:
        lies = self._places[archive].get(name)
        path = self.files[archive]
        file = self._opened.get(path)
        for place, row in zip(places.tolist(), inside.tolist(), strict=True):
            offset, size = (-1, 0) if lies is None else lies[row].tolist()
            if offset < 0:
                into[place] = None
                continue
            try:
                content = os.pread(file.number, size, offset)
            except OSError as error:
                raise SourceError("unreadable", f"cannot read {shown(path)}: {error.strerror}") from error
            if len(content) < size:
                raise SourceError("unreadable", f"{shown(path)} ends within `{self._keys[archive][row]}.{name}`")
            into[place] = _text(content, path, name) if name in _TEXTS else content

    def place(self, row: int) -> str:
        from bisect import bisect_right

        archive = bisect_right(self._starts, row) - 1
        return f"`{self._keys[archive][row - self._starts[archive]]}` of {shown(self.files[archive])}"


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
        local = _local(path)
        try:
            self.number = os.open(local, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise SourceError("unreadable", f"cannot open {shown(path)}: {error.strerror}") from error

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)


def _local(path: str) -> str:
    """Raises SourceError for a file of another machine."""
    local = local_path(path)
    if local is None:
        raise SourceError("unreadable", f"{shown(path)} is not on this machine", help="copy it: archives are read here")
    return local


def _index(path: str) -> Index:
    """Raises SourceError."""
    if packing(path) is not None:
        message = f"{shown(path)} is packed, and its files cannot be read where they lie"
        raise SourceError("unreadable", message, help="unpack it to a `.tar`: pictures are packed already")
    with open(_local(path), "rb") as file:
        found = os.fstat(file.fileno())
        kept = place_of("tar", os.path.realpath(path), found.st_size, found.st_mtime_ns)
        if (index := load(kept)) is not None:
            return index[0], index[1]
        try:
            index = _made(file)
        except (tarfile.TarError, EOFError, ValueError) as error:
            raise SourceError("unreadable", f"{shown(path)} is not a whole tar archive: {error}") from error
    save(kept, index)
    return index


def _made(file: IO[bytes]) -> Index:
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
