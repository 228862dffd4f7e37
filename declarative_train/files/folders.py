"""Folders of files, local or on any file system of fsspec: list the files once, when a source is opened.

The listing also gives the size and tag of each remote file, so that reading a file later requests only its bytes. A
listing by HTTP is a page of links without sizes and tags, so the server is asked for those of a file at its first read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from declarative_train.files.cache import stamp
from declarative_train.files.file_activity import set_file
from declarative_train.files.open_files import file_system, format_path, is_remote
from declarative_train.files.paths import SourceError, as_source_error
from declarative_train.files.remote import find_info, note, retry

T = TypeVar("T")

_AT_ONCE = 16  # concurrent requests: latency dominates small files


def list_files(root: str) -> list[str]:
    """Return the paths, relative to the folder `root`, of all files in it and in its subfolders. `root` has no `/` at
    its end. Raises SourceError."""
    system, inner = file_system(root)
    inner = inner.rstrip("/")
    found = []
    with as_source_error("look at", root):
        if is_remote(root):
            system.invalidate_cache()  # it caches listings for the life of the process
        try:
            listed = retry(lambda: system.find(inner, detail=True)) if _has_find(system) else dict(_walk(system, inner))
        except FileNotFoundError:
            raise SourceError("not_found", f"there is no folder {format_path(root)}") from None
        for path, info in listed.items():
            below = path[len(inner) + 1 :]
            if path == inner:
                raise SourceError("unreadable", f"{format_path(root)} is a file; a folder of pictures is expected")
            if info["type"] == "file" and path.startswith(f"{inner}/") and below:
                note(f"{root}/{below}", info)
                found.append(below)
    return found


def _has_find(system: Any) -> bool:
    """Return whether an fsspec file system can list everything below a folder with one call, as object stores can.
    fsspec's generic method does not count, because it skips folders that fail."""
    from fsspec.asyn import AsyncFileSystem

    return getattr(type(system), "_find", AsyncFileSystem._find) is not AsyncFileSystem._find


def _walk(system: Any, inner: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the path of each file below the folder `inner`, and fsspec's info about it. Folders are listed one by
    one."""
    waiting, met = [inner], {inner}
    while waiting:
        folder = waiting.pop()
        at = f"{folder}/" if "://" in folder else folder  # the page of a folder
        for info in retry(lambda at=at: system.ls(at, detail=True)):  # type: ignore[misc]
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
    """Return a list of `read(path)` for each path, in order. Files are read concurrently. Raises SourceError."""
    if len(paths) < 2:
        return [_read_noted(path, read) for path in paths]
    set_file(paths[0])  # for reports of stalls
    with ThreadPoolExecutor(min(_AT_ONCE, len(paths))) as pool:
        return list(pool.map(lambda path: _read_noted(path, read), paths))


def _read_noted(path: str, read: Callable[[str], T]) -> T:
    if find_info(path) is None:
        stamp(path)  # stores its size and tag, from which names of cache entries are made
    return read(path)


def stamp_from_listing(root: str, below: str) -> tuple[int, str]:
    """Return (size, tag) of the remote file `root`/`below`, stored when its folder was listed. Return (0, "") if the
    listing had no size. The tag changes if the file changes."""
    known = find_info(f"{root}/{below}")
    return (0, "") if known is None else (known.size, known.tag)


def list_remote(root: str, endings: Collection[str]) -> Iterator[str]:
    """Yield the paths of files with these `endings` below the remote folder `root`, unsorted, as `files_below` does for
    a local folder. Raises SourceError."""
    for name in list_files(root.rstrip("/")):
        is_hidden = any(part.startswith(".") for part in name.split("/"))
        if not is_hidden and os.path.splitext(name)[1].lower() in endings:
            yield name


def files_below(root: str, endings: Collection[str]) -> Iterator[str]:
    """Yield the paths of files with these endings below the local folder `root`, unsorted. Links to folders are
    followed, because data sets are often assembled with `ln -s`."""
    waiting = [""]
    while waiting:
        below = waiting.pop()
        folder = os.path.join(root, below)
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    if not (entry.is_symlink() and _is_above(entry.path, folder)):
                        waiting.append(os.path.join(below, entry.name))
                elif os.path.splitext(entry.name)[1].lower() in endings:
                    yield os.path.join(below, entry.name)


def _is_above(link: str, folder: str) -> bool:
    """Return whether a link in `folder` leads to a folder above it, so that following it would never end."""
    target = os.path.realpath(link)
    return os.path.join(os.path.realpath(folder), "").startswith(os.path.join(target, ""))
