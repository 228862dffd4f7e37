"""Folders of other machines, by any file system of fsspec: which files lie below, asked for once when a source is
opened.

What the listing says of a file (its size, a tag) is noted, so that reading it asks for nothing but its bytes; a listing
by HTTP is a page of links and says neither, so that each file is asked about when it is first read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from declarative_train.files.cache import stamp
from declarative_train.files.errors import SourceError
from declarative_train.files.file_activity import turn_to
from declarative_train.files.open_files import file_system, is_remote, shown
from declarative_train.files.paths import told
from declarative_train.files.remote import again, note, seen

T = TypeVar("T")

_AT_ONCE = 16  # files that are asked for together: their servers take long to begin, and little to send


def files_below(root: str) -> list[str]:
    """Their paths below `root`, which ends without `/`. Raises SourceError."""
    system, inner = file_system(root)
    inner = inner.rstrip("/")
    found = []
    with told("look at", root):
        if is_remote(root):
            system.invalidate_cache()  # it keeps listings as long as the process lives
        try:
            listed = again(lambda: system.find(inner, detail=True)) if _finds(system) else dict(_walked(system, inner))
        except FileNotFoundError:
            raise SourceError("not_found", f"there is no folder {shown(root)}") from None
        for path, info in listed.items():
            below = path[len(inner) + 1 :]
            if path == inner:
                raise SourceError("unreadable", f"{shown(root)} is a file, and a folder of pictures is wanted")
            if info["type"] == "file" and path.startswith(f"{inner}/") and below:
                note(f"{root}/{below}", info)
                found.append(below)
    return found


def _finds(system: Any) -> bool:
    """Object stores list all below a name at once. What fsspec does for the others passes over folders that fail."""
    from fsspec.asyn import AsyncFileSystem

    return getattr(type(system), "_find", AsyncFileSystem._find) is not AsyncFileSystem._find


def _walked(system: Any, inner: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Folder by folder."""
    waiting, met = [inner], {inner}
    while waiting:
        folder = waiting.pop()
        at = f"{folder}/" if "://" in folder else folder  # a page of links is that of a folder
        for info in again(lambda at=at: system.ls(at, detail=True)):  # type: ignore[misc]
            path = str(info["name"]).rstrip("/")
            if "?" in path or not path.startswith(f"{inner}/") or path in met:
                if path == inner and info["type"] == "file":
                    yield path, info
                continue  # links to sort a page by, to folders above, and to elsewhere
            met.add(path)
            if info["type"] == "directory":
                waiting.append(path)
            else:
                yield path, info


def read_all(paths: Sequence[str], read: Callable[[str], T]) -> list[T]:
    """What `read` makes of the files, some at a time. Raises SourceError."""
    if len(paths) < 2:
        return [_asked(path, read) for path in paths]
    turn_to(paths[0])  # for who waits for this thread
    with ThreadPoolExecutor(min(_AT_ONCE, len(paths))) as pool:
        return list(pool.map(lambda path: _asked(path, read), paths))


def _asked(path: str, read: Callable[[str], T]) -> T:
    if seen(path) is None:
        stamp(path)  # its size and tag, under which it is kept
    return read(path)


def told_of(root: str, below: str) -> tuple[int, str]:
    """The size and tag of a file that the listing said; 0 and "" where it did not."""
    known = seen(f"{root}/{below}")
    return (0, "") if known is None else (known.size, known.tag)
