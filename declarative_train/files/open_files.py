"""Files that a recipe names, as what sources read: opened, mapped, by range, any number of them at a time."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from io import BytesIO
from threading import get_ident
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from declarative_train.files.errors import SourceError
from declarative_train.files.file_activity import turn_to
from declarative_train.files.paths import expand as expand  # all of them beside what reads files
from declarative_train.files.paths import file_system as file_system
from declarative_train.files.paths import is_known as is_known
from declarative_train.files.paths import is_remote as is_remote
from declarative_train.files.paths import local_path as local_path
from declarative_train.files.paths import shown as shown
from declarative_train.files.paths import size_bytes as size_bytes
from declarative_train.files.paths import told, unreadable
from declarative_train.files.remote import RemoteFile, again
from declarative_train.files.remote_files import opened_ranges, ranges_of

if TYPE_CHECKING:
    import numpy as np


_AS_UTF8 = "save it as UTF-8 (from Excel: `CSV UTF-8`)"
_BEGINNINGS = {
    b"\x93NUMPY": ("a NumPy array", "the source `npy` reads arrays; let its name end in `.npy`"),
    b"PK\x03\x04": ("a zip archive", "the source `npy` reads archives of arrays; let its name end in `.npz`"),
    b"PAR1": ("a Parquet file", "the source `parquet` reads it"),
    b"ARROW1": ("an Arrow file", "the source `arrow` reads it"),
    b"SQLite format 3\0": ("an SQLite database", "the source `sqlite` reads it"),
    b"\xff\xfe": ("text in UTF-16", _AS_UTF8),
    b"\xfe\xff": ("text in UTF-16", _AS_UTF8),
    b"\x1f\x8b": ("packed by gzip", "let its name end in `.gz`, or unpack it"),
}
_MOST_OPEN = 64  # files of one table; processes may often have 1,024 open, on some systems 256


def open_file(path: str) -> Any:
    """A readable, seekable binary file; one in an archive is unpacked into memory: as a stream it would end with its
    file system, and processes would share its position. Raises SourceError."""
    local = local_path(path)
    turn_to(path)
    with told("open", path):
        if local is not None:
            return open(local, "rb")
        if is_remote(path) and (found := opened_ranges(path)) is not None:
            return found
        system, inner = file_system(path)
        if _is_archive(system):
            return BytesIO(again(lambda: system.cat_file(inner)))
        opened = again(lambda: system.open(inner, "rb"))
        return RemoteFile(opened) if is_remote(path) and opened.seekable() else opened


def _is_archive(system: Any) -> bool:
    from fsspec.archive import AbstractArchiveFileSystem

    return isinstance(system, AbstractArchiveFileSystem)


T = TypeVar("T")


_SKIPS: ContextVar[bool] = ContextVar("skips", default=False)


def skips_bad_rows() -> bool:
    """Whether a source that is opened now leaves out rows that do not parse."""
    return _SKIPS.get()


@contextmanager
def skipping(skips: bool) -> Iterator[None]:
    """While sources are opened, by `data.on_bad_row`."""
    token = _SKIPS.set(skips)
    try:
        yield
    finally:
        _SKIPS.reset(token)


class OpenFiles(Generic[T]):
    """What `open_one` makes of a file (a reader, a mapping), for any number of files: the last used ones stay open.

    A file of this machine must still have the size and date that it had when it was opened first, else what was read
    from it and what will be are not of one table. `own_after_fork`: a forked process opens its own, since what was open
    before has a position that both would move; a mapping has none. `own_by_thread`: each thread opens its own, for
    readers that two may not use. Threads may come at once.
    """

    def __init__(
        self,
        open_one: Callable[[str], T],
        *,
        own_after_fork: bool = False,
        own_by_thread: bool = False,
        most: int = _MOST_OPEN,
    ) -> None:
        self._open_one = open_one
        self._own_after_fork = own_after_fork
        self._own_by_thread = own_by_thread
        self._most = most
        self._process = os.getpid()
        self._open: OrderedDict[tuple[str, int], T] = OrderedDict()
        self._seen: dict[str, tuple[int, int]] = {}

    def get(self, path: str) -> T:
        """Raises SourceError, and what `open_one` raises."""
        if self._own_after_fork and self._process != os.getpid():
            self._process, self._open = os.getpid(), OrderedDict()
        turn_to(path)
        key = path, get_ident() if self._own_by_thread else 0
        found = self._open.pop(key, None)
        if found is None:
            found = self._open_one(path)
        self._check_same(path)
        self._open[key] = found
        while len(self._open) > self._most:
            try:
                self._open.popitem(last=False)  # who still reads from it keeps it
            except KeyError:  # another thread was first
                break
        return found

    def expect(self, path: str, size: int, modified_ns: int) -> None:
        """What is known of a file of this machine that is opened later."""
        self._seen[path] = size, modified_ns

    def _check_same(self, path: str) -> None:
        local = local_path(path)
        if local is None:
            return
        try:
            now = os.stat(local)
        except FileNotFoundError:
            return  # removed while it is open: what is open stays whole
        except OSError as error:
            raise unreadable("look at", path, error) from error
        if self._seen.setdefault(path, (now.st_size, now.st_mtime_ns)) != (now.st_size, now.st_mtime_ns):
            raise SourceError("unreadable", f"{shown(path)} was changed while it was being read")


def by_piece(starts: Sequence[int], rows: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Row numbers -> each piece of the table that has some: its number, their places among `rows`, their numbers in it.
    `starts`: the row that each piece begins with, and that after the last."""
    import numpy as np

    piece_of = np.searchsorted(np.asarray(starts, np.int64), rows, side="right") - 1
    order = np.argsort(piece_of, kind="stable")
    pieces, begins = np.unique(piece_of[order], return_index=True)
    for piece, places in zip(pieces.tolist(), np.split(order, begins[1:]), strict=False):
        yield piece, places, rows[places] - starts[piece]


def objects(values: Sequence[object]) -> np.ndarray:
    """Texts, bytes or None, as a column holds them."""
    import numpy as np

    found = np.empty(len(values), object)
    found[:] = values
    return found


def mapped_bytes(path: str) -> np.memmap:
    """All bytes of a file of this machine, in place. Each process writes to a copy of its own, if it writes at all."""
    import numpy as np

    local = local_path(path)
    assert local is not None
    with told("read", path):
        return np.memmap(local, np.uint8, "c")


def read_bytes(path: str, start: int = 0, end: int | None = None) -> bytes:
    """The bytes from `start` up to `end`. Raises SourceError."""
    local = local_path(path)
    turn_to(path)
    with told("read", path):
        if local is not None:
            with open(local, "rb") as file:
                file.seek(start)
                return file.read(-1 if end is None else end - start)
        if is_remote(path) and (kept := ranges_of(path)) is not None:
            return kept.read(start, kept.size if end is None else end)
        system, inner = file_system(path)
        found: bytes = again(lambda: system.cat_file(inner, start=start, end=end))
        return found


def packing(path: str) -> str | None:
    """pyarrow's word for how a file is packed, by the end of its name."""
    return {"gz": "gzip", "bz2": "bz2", "zst": "zstd"}.get(path.rpartition(".")[2])


def check_beginning(path: str, kind: str, wanted: bytes | None) -> None:
    """That a file is of the `kind` ("a Parquet file") that its source reads: it begins with `wanted`; None: as a text
    that nobody packed. Raises SourceError."""
    begin = read_bytes(path, 0, 16)
    found = next((magic for magic in _BEGINNINGS if begin.startswith(magic)), None)
    is_text = begin.isascii() and all(byte >= 32 or byte in b"\t\r\n" for byte in begin)  # a column may be called PAR1
    if not begin or found == wanted or (wanted is None and is_text):
        return  # the reader of an empty file says so
    words, hint = _BEGINNINGS[found] if found is not None else ("", None)
    if is_text:
        words, hint = "text", "`csv`, `jsonl` and `text` are the sources that read text"
    raise SourceError("unreadable", f"{shown(path)} is not {kind}{words and f', it is {words}'}", help=hint)
