"""Access to the files of data sources: open, map, read byte ranges, and keep recently used files open."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from io import BytesIO
from threading import get_ident
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from declarative_train.files.file_activity import set_file
from declarative_train.files.paths import SourceError, as_source_error, unreadable
from declarative_train.files.paths import expand as expand  # exported here, together with the functions that read files
from declarative_train.files.paths import file_system as file_system
from declarative_train.files.paths import format_path as format_path
from declarative_train.files.paths import is_known as is_known
from declarative_train.files.paths import is_remote as is_remote
from declarative_train.files.paths import local_path as local_path
from declarative_train.files.paths import size_bytes as size_bytes
from declarative_train.files.range_cache import open_ranges, ranges_of
from declarative_train.files.remote import RemoteFile, retry

if TYPE_CHECKING:
    import numpy as np


_AS_UTF8 = "save it as UTF-8 (from Excel: `CSV UTF-8`)"
_BEGINNINGS = {
    b"\x93NUMPY": ("a NumPy array", "the source `npy` reads arrays; rename it to end in `.npy`"),
    b"PK\x03\x04": ("a zip archive", "the source `npy` reads archives of arrays; rename it to end in `.npz`"),
    b"PAR1": ("a Parquet file", "the source `parquet` reads it"),
    b"ARROW1": ("an Arrow file", "the source `arrow` reads it"),
    b"SQLite format 3\0": ("an SQLite database", "the source `sqlite` reads it"),
    b"\xff\xfe": ("text in UTF-16", _AS_UTF8),
    b"\xfe\xff": ("text in UTF-16", _AS_UTF8),
    b"\x1f\x8b": ("compressed by gzip", "rename it to end in `.gz`, or unpack it"),
}
_MOST_OPEN = 64  # files of one table; a process may often open 1,024, on some systems 256


def open_file(path: str) -> Any:
    """Open a file as a readable, seekable binary file. Raises SourceError.

    A file in an archive is unpacked into memory: a stream into the archive would be closed together with the archive,
    and forked processes would share its position.
    """
    local = local_path(path)
    set_file(path)
    with as_source_error("open", path):
        if local is not None:
            return open(local, "rb")
        if is_remote(path) and (found := open_ranges(path)) is not None:
            return found
        system, inner = file_system(path)
        if _is_archive(system):
            return BytesIO(retry(lambda: system.cat_file(inner)))
        opened = retry(lambda: system.open(inner, "rb"))
        return RemoteFile(opened) if is_remote(path) and opened.seekable() else opened


def _is_archive(system: Any) -> bool:
    from fsspec.archive import AbstractArchiveFileSystem

    return isinstance(system, AbstractArchiveFileSystem)


T = TypeVar("T")


_SKIPS: ContextVar[bool] = ContextVar("skips", default=False)


def skips_bad_rows() -> bool:
    """Return whether this code runs inside `with skip_bad_rows(True)`, where sources leave out rows that they cannot
    parse."""
    return _SKIPS.get()


@contextmanager
def skip_bad_rows(skips: bool) -> Iterator[None]:
    """If `skips` is true, let sources that are opened in the `with` block leave out rows that cannot be parsed. `skips`
    follows from the recipe's `data.on_bad_row`."""
    token = _SKIPS.set(skips)
    try:
        yield
    finally:
        _SKIPS.reset(token)


class OpenFiles(Generic[T]):
    """Cache of open files: the results of `open_one` by path. The most recently used ones stay open. Thread-safe.

    If the size or modification time of a local file changes, `get` raises SourceError, because rows of the old and of
    the new file would be mixed.

    `own_after_fork`  a forked process opens the files again, because it would share file positions with its parent
    `own_by_thread`   each thread opens the files again, because `open_one` returns readers that are not thread-safe
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
        """Return the open file at `path` (the result of `open_one`), which is opened if the cache does not have it.
        Raises SourceError, and the exceptions of `open_one`."""
        if self._own_after_fork and self._process != os.getpid():
            self._process, self._open = os.getpid(), OrderedDict()
        set_file(path)
        key = path, get_ident() if self._own_by_thread else 0
        found = self._open.pop(key, None)
        if found is None:
            found = self._open_one(path)
        self._check_same(path)
        self._open[key] = found
        while len(self._open) > self._most:
            try:
                self._open.popitem(last=False)  # a thread that still reads from it keeps it
            except KeyError:  # another thread was first
                break
        return found

    def expect(self, path: str, size: int, modified_ns: int) -> None:
        """Set the size and date that a local file must have. If they differ when `get` opens the file, `get` raises
        SourceError."""
        self._seen[path] = size, modified_ns

    def _check_same(self, path: str) -> None:
        local = local_path(path)
        if local is None:
            return
        try:
            now = os.stat(local)
        except FileNotFoundError:
            return  # removed while it is open: its content can still be read
        except OSError as error:
            raise unreadable("look at", path, error) from error
        if self._seen.setdefault(path, (now.st_size, now.st_mtime_ns)) != (now.st_size, now.st_mtime_ns):
            raise SourceError("unreadable", f"{format_path(path)} changed while it was being read")


def by_piece(starts: Sequence[int], rows: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Group row indices of a table by the piece, such as a file, that contains the row. Yield (piece, places, inside)
    for each piece with some of the `rows`: its index, the positions in `rows` of the rows in it, and their indices
    within the piece.

    `starts`: first row of each piece, then the number of all rows. `rows`: row indices in any order.
    """
    import numpy as np

    piece_of = np.searchsorted(np.asarray(starts, np.int64), rows, side="right") - 1
    order = np.argsort(piece_of, kind="stable")
    pieces, begins = np.unique(piece_of[order], return_index=True)
    for piece, places in zip(pieces.tolist(), np.split(order, begins[1:]), strict=False):
        yield piece, places, rows[places] - starts[piece]


def objects(values: Sequence[object]) -> np.ndarray:
    """Return `values` (texts, bytes or None) as a numpy array of dtype object."""
    import numpy as np

    found = np.empty(len(values), object)
    found[:] = values
    return found


def map_bytes(path: str) -> np.memmap:
    """Return a memory map of all bytes of a local file. Writing to it does not change the file (copy on write)."""
    import numpy as np

    local = local_path(path)
    assert local is not None
    with as_source_error("read", path):
        return np.memmap(local, np.uint8, "c")


def read_bytes(path: str, start: int = 0, end: int | None = None) -> bytes:
    """Return the bytes from `start` to `end` (exclusive). Raises SourceError."""
    local = local_path(path)
    set_file(path)
    with as_source_error("read", path):
        if local is not None:
            with open(local, "rb") as file:
                file.seek(start)
                return file.read(-1 if end is None else end - start)
        if is_remote(path) and (kept := ranges_of(path)) is not None:
            return kept.read(start, kept.size if end is None else end)
        system, inner = file_system(path)
        found: bytes = retry(lambda: system.cat_file(inner, start=start, end=end))
        return found


def packing(path: str) -> str | None:
    """Return the compression of a file by the extension of its name: "gzip", "bz2" or "zstd" (pyarrow's
    names). Return None for any other extension.
    """
    return {"gz": "gzip", "bz2": "bz2", "zst": "zstd"}.get(path.rpartition(".")[2])


def check_beginning(path: str, kind: str, wanted: bytes | None) -> None:
    """Raise SourceError if the first bytes of a file are those of another format than its source reads. An empty file
    is accepted.

    `kind`: the format that the source reads, for the message ("a Parquet file"). `wanted`: the bytes with which the
    file must begin; None: the file must be text, not compressed."""
    begin = read_bytes(path, 0, 16)
    found = next((magic for magic in _BEGINNINGS if begin.startswith(magic)), None)
    is_text = begin.isascii() and all(byte >= 32 or byte in b"\t\r\n" for byte in begin)  # a column may be called PAR1
    if not begin or found == wanted or (wanted is None and is_text):
        return  # an empty file is reported by its reader
    words, hint = _BEGINNINGS[found] if found is not None else ("", None)
    if is_text:
        words, hint = "text", "`csv`, `jsonl` and `text` are the sources for text"
    raise SourceError("unreadable", f"{format_path(path)} is not {kind}{words and f', it is {words}'}", help=hint)
