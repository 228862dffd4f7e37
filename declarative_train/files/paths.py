"""Paths of data sources, and their expansion to files, local or at any fsspec URL. Also `SourceError`, for a source
that cannot be read.

Local files do not go through fsspec, because importing it costs as much as reading a small table."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from glob import glob, has_magic
from typing import Any
from urllib.parse import urlsplit

from declarative_train.core.machine import install
from declarative_train.core.secrets import masked, variables_in
from declarative_train.files.remote import RemoteError, find_info, http_options, note, reason, retry

_HERE = ("file://", "local://")
_IN_PROCESS = ("memory://",)
_LISTED = 8  # files of a folder that a message lists
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "http": "http", "https": "http"}
_CHAIN = "::"  # between the links of a chained URL: zip://*.csv::data.zip is the files in an archive


class SourceError(Exception):
    """Error: a data source cannot be opened or read. It has a message, and data to find the position in the recipe.

    `problem`  not_found, no_match (a glob), no_file_system, unreadable, different_columns, or plugin (its code fails)
    `name`     the name that was not found
    `known`    the names that exist instead
    `path`     the path that was not found
    `below`    position of a source in its mixture; "" for other sources"""

    below: str = ""

    def __init__(
        self,
        problem: str,
        message: str,
        *,
        help: str | None = None,
        name: str = "",
        known: tuple[str, ...] = (),
        path: str = "",
    ) -> None:
        super().__init__(message)
        self.problem = problem
        self.help = help
        self.name = name
        self.known = known
        self.path = path


def is_remote(path: str) -> bool:
    """Return whether a path is a URL that is read over a network."""
    last = path.rpartition(_CHAIN)[2]
    return "://" in last and not last.startswith((*_HERE, *_IN_PROCESS))


def is_known(url: str) -> bool:
    """Return whether fsspec knows the scheme of a URL, even if the package for it is not installed."""
    from fsspec.registry import available_protocols

    return set(url.partition("://")[0].split(_CHAIN)) <= set(available_protocols())


def local_path(path: str) -> str | None:
    """Return a path or URL as a path in the local file system. Return None for a URL of another file system."""
    for scheme in _HERE:
        if path.startswith(scheme):
            return path[len(scheme) :]
    return None if "://" in path else path


def _scheme(url: str) -> str:
    """Return the scheme of a URL, such as `s3`, or the whole text if it has none. In a chained URL
    (`zip://a.csv::s3://...`) it is the scheme of the last link, which holds the bytes."""
    return url.rpartition(_CHAIN)[2].partition("://")[0]


def file_system(url: str) -> tuple[Any, str]:
    """Return fsspec's file system for a URL, and the path within that file system. Raises SourceError."""
    import fsspec

    archive = local_path(url.rpartition(_CHAIN)[2])
    if _CHAIN in url and archive is not None and not os.path.isfile(archive):
        _expand_local(archive, archive)  # raises SourceError, because the file is missing
    _announce_variables(url)
    try:
        scheme = _scheme(url)
        options = {scheme: http_options()} if scheme in ("http", "https") else {}
        found: tuple[Any, str] = fsspec.core.url_to_fs(url, **options)
    except (ImportError, ValueError) as error:
        extra = _EXTRAS.get(_scheme(url)) if isinstance(error, ImportError) else None
        hint = None if extra is None else install(extra)
        raise SourceError("no_file_system", f"cannot open {format_path(url)}: {reason(error)}", help=hint) from error
    except Exception as error:
        raise unreadable("open", url, error) from error
    return found


_announced: set[tuple[str, str]] = set()  # hosts and variables


def _announce_variables(url: str) -> None:
    """Print which environment variables are sent to the host of a URL, once for each variable and host."""
    if not is_remote(url):
        return
    host = masked(urlsplit(url.rpartition(_CHAIN)[2]).netloc.rpartition("@")[2])
    for name in variables_in(url):
        if (host, name) not in _announced:
            _announced.add((host, name))
            print(f"dtrain: {host} receives the value of `{name}`, which the recipe puts into a URL", file=sys.stderr)


@contextmanager
def as_source_error(what: str, path: str) -> Iterator[None]:
    """Convert every exception raised in the `with` block into a SourceError "cannot `what` `path`: reason". `what`: a
    verb, such as `open`. All exceptions are converted because each cloud client has its own."""
    try:
        yield
    except SourceError:
        raise
    except Exception as error:
        raise unreadable(what, path, error) from error


def unreadable(what: str, path: str, error: Exception) -> SourceError:
    """Return the SourceError "cannot `what` `path`: reason" for a file that cannot be read. `what`: a verb, such as
    `open`."""
    return SourceError("unreadable", f"cannot {what} {format_path(path)}: {reason(error)}")


def expand(paths: Sequence[str]) -> list[str]:
    """Return every file that the paths and globs name, in the order of `paths`. The files of a glob are sorted by name.
    Raises SourceError."""
    return [file for path in paths for file in _expand_one(path)]


def _expand_one(path: str) -> list[str]:
    local = local_path(path)
    if local is not None:
        return _expand_local(path, local)
    system, inner = file_system(path)
    with as_source_error("look at", path):
        if is_remote(path):
            system.invalidate_cache()  # it keeps listings as long as the process lives
        if has_magic(inner):
            found: dict[str, Any] = retry(lambda: system.glob(inner, detail=True))
            listed = [(_same_place(path, file), file, found[file]) for file in sorted(found)]
            return _some(path, [url for url, file, info in listed if _is_file(system, url, file, info)])
        if _is_file(system, path, inner):
            return [path]
        raise _not_found(path, inner, [os.path.basename(file) for file in _siblings(system, inner)])


def _is_file(system: Any, url: str, path: str, listed: Mapping[str, Any] | None = None) -> bool:
    """Return whether a path is a file. If it is, store its size and tag (`remote.note`).

    `system`: fsspec's file system. `url`, `path`: the file as a URL, and its path in that system. `listed`: fsspec's
    info from a listing; if it has a size, no request is sent. Raises RemoteError if the request fails, unlike fsspec's
    `isfile`, which returns False."""
    try:
        is_listed = listed is not None and (listed.get("size") is not None or listed.get("type") != "file")
        info = listed if listed is not None and is_listed else retry(lambda: system.info(path))
        if info["type"] == "file":
            note(url, info)
        return bool(info["type"] == "file")
    except FileNotFoundError:
        return False
    except RemoteError as error:
        if isinstance(error.__cause__, LookupError | ValueError | NotADirectoryError | IsADirectoryError):
            return False
        raise


def _same_place(url: str, file: str) -> str:
    """Return `file`, a path or URL in the file system of `url`, as a complete URL: for the url
    `simplecache::s3://bucket/a` and the file `bucket/b`, it is `simplecache::s3://bucket/b`."""
    links = url.split(_CHAIN)
    own = next(index for index, link in enumerate(links) if "://" in link)
    links[own] = file if "://" in file else f"{links[own].partition('://')[0]}://{file}"
    return _CHAIN.join(links)


def _expand_local(path: str, local: str) -> list[str]:
    if os.path.isfile(local):
        return [local]
    if os.path.isdir(local):
        message = f"{format_path(path)} is a folder"
        raise SourceError("unreadable", message, help=f"list its files: {format_path(path).rstrip('/')}/*")
    if has_magic(local):
        return _some(path, sorted(file for file in glob(local, recursive=True) if os.path.isfile(file)))
    folder = os.path.dirname(local) or "."
    raise _not_found(path, local, sorted(os.listdir(folder)) if os.path.isdir(folder) else [])


def _siblings(system: Any, path: str) -> list[str]:
    try:
        return [str(file) for file in system.ls(path.rpartition("/")[0], detail=False)]
    except Exception:  # the names are only for a hint; an error of the file system is reported elsewhere
        return []


def _some(path: str, found: list[str]) -> list[str]:
    if not found:
        hint = None if local_path(path) is not None else "`*` stays in one folder, `**` goes through folders"
        raise SourceError("no_match", f"no file matches {format_path(path)}", help=hint, path=path)
    return found


def _not_found(path: str, inner: str, siblings: list[str]) -> SourceError:
    hint = None if local_path(path) is not None else _list_names(siblings)
    name = os.path.basename(inner)
    message = f"there is no file {format_path(path)}"
    return SourceError("not_found", message, help=hint, name=name, known=tuple(siblings), path=path)


def _list_names(names: list[str]) -> str:
    if not names:
        return "there are no other files in its folder"
    more = f", and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
    return f"files in its folder: {', '.join(names[:_LISTED])}{more}"


def format_path(path: str) -> str:
    """Return the path as a message shows it: without passwords, and relative if it is below the working directory."""
    links, _, last = path.rpartition(_CHAIN)
    local = local_path(last)
    if local is None or not os.path.isabs(local):
        return masked(path)
    near = os.path.relpath(local)
    return masked(path if near.startswith("..") else f"{links}{_CHAIN if links else ''}{near}")


def size_bytes(path: str) -> int:
    """Return the size of a file in bytes. Raises SourceError."""
    local = local_path(path)
    with as_source_error("look at", path):
        if local is not None:
            return os.path.getsize(local)
        if (known := find_info(path)) is not None:
            return known.size
        system, inner = file_system(path)
        return int(retry(lambda: system.size(inner)))
