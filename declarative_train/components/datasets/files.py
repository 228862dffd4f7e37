"""The `path` of a source -> the files that it means, and their bytes, by any fsspec URL.

Local files do not go through fsspec, whose import costs as much as reading a small table.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from glob import glob, has_magic
from typing import Annotated, Any

from pydantic import Field

from declarative_train.components.component import SourceError

Paths = (
    Annotated[str, Field(min_length=1)]
    | Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)]
)

_HERE = ("file://", "local://")
_IN_PROCESS = ("memory://",)


def as_tuple(path: str | tuple[str, ...]) -> tuple[str, ...]:
    return (path,) if isinstance(path, str) else path


def is_remote(path: str) -> bool:
    """Reading it needs a network."""
    return "://" in path and not path.startswith((*_HERE, *_IN_PROCESS))


def is_known(url: str) -> bool:
    """fsspec has a file system for the scheme, whether or not its package is installed here."""
    from fsspec.registry import available_protocols

    return set(url.partition("://")[0].split("::")) <= set(available_protocols())


def local_path(path: str) -> str | None:
    """The path in this machine's file system, or None for a URL of another."""
    for scheme in _HERE:
        if path.startswith(scheme):
            return path[len(scheme) :]
    return None if "://" in path else path


def file_system(url: str) -> tuple[Any, str]:
    """fsspec's file system of a URL, and the path within it. Raises SourceError."""
    import fsspec

    try:
        found: tuple[Any, str] = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise SourceError("no_file_system", f"cannot open {url}: {_reason(error)}") from error
    return found


def expand(paths: Sequence[str]) -> list[str]:
    """Every file, in the order written; the files of a glob by name. Raises SourceError."""
    return [file for path in paths for file in _expand_one(path)]


def _expand_one(path: str) -> list[str]:
    local = local_path(path)
    if local is not None:
        return _expand_local(path, local)
    system, inner = file_system(path)
    try:
        if has_magic(inner):
            found = [system.unstrip_protocol(file) for file in sorted(system.glob(inner)) if not system.isdir(file)]
        elif system.isfile(inner):
            return [path]
        else:
            raise _not_found(path, inner, [os.path.basename(file) for file in _siblings(system, inner)])
    except OSError as error:
        raise SourceError("unreadable", f"cannot look at {path}: {_reason(error)}") from error
    return _some(path, found)


def _expand_local(path: str, local: str) -> list[str]:
    if os.path.isfile(local):
        return [local]
    if os.path.isdir(local):
        raise SourceError(
            "unreadable", f"{shown(path)} is a folder", help=f"name its files: {shown(path).rstrip('/')}/*"
        )
    if has_magic(local):
        return _some(path, sorted(file for file in glob(local, recursive=True) if os.path.isfile(file)))
    folder = os.path.dirname(local) or "."
    raise _not_found(path, local, sorted(os.listdir(folder)) if os.path.isdir(folder) else [])


def _siblings(system: Any, path: str) -> list[str]:
    try:
        return [str(file) for file in system.ls(path.rpartition("/")[0], detail=False)]
    except (OSError, ValueError):
        return []


def _some(path: str, found: list[str]) -> list[str]:
    if not found:
        raise SourceError("no_match", f"no file matches {shown(path)}")
    return found


def _not_found(path: str, inner: str, siblings: list[str]) -> SourceError:
    return SourceError(
        "not_found", f"there is no file {shown(path)}", name=os.path.basename(inner), known=tuple(siblings)
    )


def shown(path: str) -> str:
    """The path as a message names it: from the working directory where it lies below it."""
    local = local_path(path)
    if local is None or not os.path.isabs(local):
        return path
    near = os.path.relpath(local)
    return path if near.startswith("..") else near


def open_file(path: str) -> Any:
    """A readable, seekable binary file. Raises SourceError."""
    local = local_path(path)
    try:
        if local is not None:
            return open(local, "rb")
        system, inner = file_system(path)
        return system.open(inner, "rb")
    except OSError as error:
        raise SourceError("unreadable", f"cannot open {shown(path)}: {_reason(error)}") from error


def read_bytes(path: str, start: int = 0, end: int | None = None) -> bytes:
    """The bytes from `start` up to `end`. Raises SourceError."""
    local = local_path(path)
    try:
        if local is not None:
            with open(local, "rb") as file:
                file.seek(start)
                return file.read(-1 if end is None else end - start)
        system, inner = file_system(path)
        found: bytes = system.cat_file(inner, start=start, end=end)
    except OSError as error:
        raise SourceError("unreadable", f"cannot read {shown(path)}: {_reason(error)}") from error
    return found


def size_bytes(path: str) -> int:
    """Raises SourceError."""
    local = local_path(path)
    try:
        if local is not None:
            return os.path.getsize(local)
        system, inner = file_system(path)
        return int(system.size(inner))
    except OSError as error:
        raise SourceError("unreadable", f"cannot look at {shown(path)}: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text).splitlines()[0]
