"""The `path` of a source -> the files that it means, and their bytes, by any fsspec URL.

Local files do not go through fsspec, whose import costs as much as reading a small table.
"""

from __future__ import annotations

import os
from abc import ABC
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from glob import glob, has_magic
from io import BytesIO
from threading import get_ident
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

from pydantic import Field

from declarative_train.components.data import Dataset, SourceError
from declarative_train.components.datasets.current_file import turn_to
from declarative_train.components.datasets.remote import RemoteError, RemoteFile, again, is_of_network, reason
from declarative_train.components.datasets.remote import masked as masked  # beside `shown`, for all who show paths

if TYPE_CHECKING:
    import numpy as np

Paths = (
    Annotated[str, Field(min_length=1)]
    | Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)]
)

_HERE = ("file://", "local://")
_IN_PROCESS = ("memory://",)
_LISTED = 8  # files of a folder that a message names
_BEGINNINGS = {
    b"\x93NUMPY": ("a NumPy array", "the source `npy` reads arrays; let its name end in `.npy`"),
    b"PK\x03\x04": ("a zip archive", "the source `npy` reads archives of arrays; let its name end in `.npz`"),
    b"PAR1": ("a Parquet file", "the source `parquet` reads it"),
    b"ARROW1": ("an Arrow file", "the source `arrow` reads it"),
    b"SQLite format 3\0": ("an SQLite database", "the source `sqlite` reads it"),
    b"\x1f\x8b": ("packed by gzip", "let its name end in `.gz`, or unpack it"),
}
_MOST_OPEN = 64  # files of one table; processes may often have 1,024 open, on some systems 256
_CHAIN = "::"  # between the links of a chained URL: zip://*.csv::data.zip is the files in an archive


class FilesDataset(Dataset, ABC):
    """Rows of files that the recipe names."""

    path: Paths
    """A file, a glob, or a list of them: any fsspec URL, relative to the recipe's file."""

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path,) if isinstance(self.path, str) else self.path

    def files(self) -> list[str]:
        """Every one of them, in the order written; those of a glob by name. Raises SourceError."""
        return expand(self.paths)


def is_remote(path: str) -> bool:
    """Reading it needs a network."""
    last = path.rpartition(_CHAIN)[2]
    return "://" in last and not last.startswith((*_HERE, *_IN_PROCESS))


def is_known(url: str) -> bool:
    """fsspec has a file system for the scheme, whether or not its package is installed here."""
    from fsspec.registry import available_protocols

    return set(url.partition("://")[0].split(_CHAIN)) <= set(available_protocols())


def local_path(path: str) -> str | None:
    """The path in this machine's file system, or None for a URL of another."""
    for scheme in _HERE:
        if path.startswith(scheme):
            return path[len(scheme) :]
    return None if "://" in path else path


def file_system(url: str) -> tuple[Any, str]:
    """fsspec's file system of a URL, and the path within it. Raises SourceError."""
    import fsspec

    archive = local_path(url.rpartition(_CHAIN)[2])
    if _CHAIN in url and archive is not None and not os.path.isfile(archive):
        _expand_local(archive, archive)  # says that it is missing, and what is there
    try:
        found: tuple[Any, str] = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise SourceError("no_file_system", f"cannot open {shown(url)}: {reason(error)}") from error
    except Exception as error:
        raise _unreadable("open", url, error) from error
    return found


@contextmanager
def _told(what: str, path: str) -> Iterator[None]:
    """Whatever a file system raises is a SourceError: each client of a cloud has exceptions of its own."""
    try:
        yield
    except SourceError:
        raise
    except Exception as error:
        raise _unreadable(what, path, error) from error


def _unreadable(what: str, path: str, error: Exception) -> SourceError:
    return SourceError("unreadable", f"cannot {what} {shown(path)}: {reason(error)}")


def expand(paths: Sequence[str]) -> list[str]:
    """Every file, in the order written; the files of a glob by name. Raises SourceError."""
    return [file for path in paths for file in _expand_one(path)]


def _expand_one(path: str) -> list[str]:
    local = local_path(path)
    if local is not None:
        return _expand_local(path, local)
    system, inner = file_system(path)
    with _told("look at", path):
        if has_magic(inner):
            found = sorted(again(lambda: system.glob(inner)))
            return _some(path, [_same_place(path, file) for file in found if _is_file(system, file)])
        if _is_file(system, inner):
            return [path]
        raise _not_found(path, inner, [os.path.basename(file) for file in _siblings(system, inner)])


def _is_file(system: Any, path: str) -> bool:
    """Raises RemoteError where nobody can say: fsspec's `isfile` says no whatever went wrong."""
    if system.isfile(path):
        return True
    try:
        return bool(again(lambda: system.info(path))["type"] == "file")
    except FileNotFoundError:
        return False
    except RemoteError as error:
        if is_of_network(error.__cause__):
            raise
        return False


def _same_place(url: str, file: str) -> str:
    """The URL of a file that the file system of `url` names: the other links of a chain stay."""
    links = url.split(_CHAIN)
    own = next(index for index, link in enumerate(links) if "://" in link)
    links[own] = file if "://" in file else f"{links[own].partition('://')[0]}://{file}"
    return _CHAIN.join(links)


def _expand_local(path: str, local: str) -> list[str]:
    if os.path.isfile(local):
        return [local]
    if os.path.isdir(local):
        message = f"{shown(path)} is a folder"
        raise SourceError("unreadable", message, help=f"name its files: {shown(path).rstrip('/')}/*")
    if has_magic(local):
        return _some(path, sorted(file for file in glob(local, recursive=True) if os.path.isfile(file)))
    folder = os.path.dirname(local) or "."
    raise _not_found(path, local, sorted(os.listdir(folder)) if os.path.isdir(folder) else [])


def _siblings(system: Any, path: str) -> list[str]:
    try:
        return [str(file) for file in system.ls(path.rpartition("/")[0], detail=False)]
    except Exception:  # only to name the nearest: what is wrong with the file system is reported elsewhere
        return []


def _some(path: str, found: list[str]) -> list[str]:
    if not found:
        hint = None if local_path(path) is not None else "`*` stays in one folder, `**` goes through folders"
        raise SourceError("no_match", f"no file matches {shown(path)}", help=hint)
    return found


def _not_found(path: str, inner: str, siblings: list[str]) -> SourceError:
    hint = None if local_path(path) is not None else _listed(siblings)
    name = os.path.basename(inner)
    return SourceError("not_found", f"there is no file {shown(path)}", help=hint, name=name, known=tuple(siblings))


def _listed(names: list[str]) -> str:
    if not names:
        return "there are no files beside it"
    more = f", and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
    return f"beside it: {', '.join(names[:_LISTED])}{more}"


def shown(path: str) -> str:
    """The path as a message names it: from the working directory where it lies below it, without passwords."""
    links, _, last = path.rpartition(_CHAIN)
    local = local_path(last)
    if local is None or not os.path.isabs(local):
        return masked(path)
    near = os.path.relpath(local)
    return masked(path if near.startswith("..") else f"{links}{_CHAIN if links else ''}{near}")


def open_file(path: str) -> Any:
    """A readable, seekable binary file; one in an archive is unpacked into memory: as a stream it would end with its
    file system, and processes would share its position. Raises SourceError."""
    local = local_path(path)
    turn_to(path)
    with _told("open", path):
        if local is not None:
            return open(local, "rb")
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
            raise _unreadable("look at", path, error) from error
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
    with _told("read", path):
        return np.memmap(local, np.uint8, "c")


def read_bytes(path: str, start: int = 0, end: int | None = None) -> bytes:
    """The bytes from `start` up to `end`. Raises SourceError."""
    local = local_path(path)
    turn_to(path)
    with _told("read", path):
        if local is not None:
            with open(local, "rb") as file:
                file.seek(start)
                return file.read(-1 if end is None else end - start)
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


def size_bytes(path: str) -> int:
    """Raises SourceError."""
    local = local_path(path)
    with _told("look at", path):
        if local is not None:
            return os.path.getsize(local)
        system, inner = file_system(path)
        return int(again(lambda: system.size(inner)))
