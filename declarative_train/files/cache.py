"""On-disk cache of data computed from files: indexes, statistics, converted tables.

folder   `dtrain` in `$XDG_CACHE_HOME`, else in `~/.cache`; it can be deleted at any time
entry    in a subfolder for its kind; named by a hash of paths, sizes, dates and options
limit    `$DTRAIN_CACHE_GB` (10); the entries that were used least recently are deleted

Without a writable folder everything works, only slower."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from typing import Any

from declarative_train.files.lock import try_lock
from declarative_train.files.paths import file_system, local_path
from declarative_train.files.remote import find_info, note, retry

_USUAL_GB = 10.0
_MOST_UNCOUNTED = 1 << 30
_FORMAT = 2

Stamp = list[int | str]
"""Size of a file, and a date or a tag that changes with its content."""


def stamp(path: str, *, refresh: bool = False) -> Stamp | None:
    """Return [size, date or tag] of a file, which changes whenever the file's content changes. Return None if the
    server of the file reports no date or tag.

    `refresh`: ask the server of a remote file again, instead of using what it reported when the source was opened.
    Raises OSError and SourceError.
    """
    local = local_path(path)
    if local is not None:
        found = os.stat(local)
        return [found.st_size, str(found.st_mtime_ns)]
    known = None if refresh else find_info(path)
    if known is None:
        system, inner = file_system(path)
        try:
            if refresh:
                system.invalidate_cache()
            known = note(path, retry(lambda: system.info(inner)))
        except Exception:  # each client has exceptions of its own; reading the file will report it
            return None
    return None if known is None or not known.tag else [known.size, known.tag]


def cache_folder(kind: str) -> str | None:
    """Return the folder of all entries of a kind, which may not exist yet. Return None if this user has no cache
    folder."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(base, "dtrain", kind) if os.path.isabs(base) else None


def cache_path(kind: str, *parts: object, ending: str = "json") -> str | None:
    """Return the path of a cache entry, which may not exist yet. Return None if there is no cache folder. `kind`: the
    subfolder of the cache. `parts`: all values on which the entry depends; the file name is a hash of them. `ending`:
    extension of the file name."""
    folder = cache_folder(kind)
    if folder is None:
        return None
    text = json.dumps([_FORMAT, *parts], sort_keys=True, default=str)
    name = blake2b(text.encode(), digest_size=16).hexdigest()
    return os.path.join(folder, f"{name}.{ending}")


def load(place: str | None) -> Any:
    """Return the data that `save` wrote to the cache entry at `place`. Return None if there is no such entry."""
    if place is None:
        return None
    try:
        with open(place, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):  # missing, or cut off: the caller computes it again
        return None
    mark_used(place)
    return found


def mark_used(place: str) -> None:
    """Record in the access time of the entry at `place` that it was used, because the least recently used entries are
    deleted first. The modification time stays, because readers use it to detect changes."""
    with suppress(OSError):
        os.utime(place, ns=(time.time_ns(), os.stat(place).st_mtime_ns))


def save(place: str | None, data: object) -> None:
    """Write `data` as JSON to the cache entry at `place`. Do nothing if `place` is None or cannot be written."""
    if place is None:
        return
    part = f"{place}.{os.getpid()}.part"
    try:
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(part, "w", encoding="utf-8") as file:
            json.dump(data, file, separators=(",", ":"))
        os.replace(part, place)
    except OSError:
        with suppress(OSError):
            os.remove(part)
        return
    count_written(os.path.getsize(place), place)


def limit_bytes() -> int:
    """Return the size limit of the cache in bytes."""
    try:
        return int(float(os.environ["DTRAIN_CACHE_GB"]) * 1e9)
    except (KeyError, ValueError):
        return int(_USUAL_GB * 1e9)


_uncounted: int | None = None


def count_written(written: int, keep: str) -> None:
    """Record that `written` bytes were added to the cache, and delete old entries if it is too large. `keep`: path of
    an entry that is not deleted.

    The size of the cache is measured at the first write of the process, and then each time that 1/32 of the limit (at
    most 1 GiB) was written, because measuring looks at every file."""
    global _uncounted
    is_first, _uncounted = _uncounted is None, (_uncounted or 0) + written
    if is_first or _uncounted > min(_MOST_UNCOUNTED, limit_bytes() // 32):
        _uncounted = 0
        make_room(keep)


def make_room(keep: str, limit: int | None = None) -> None:
    """Delete the least recently used entries until the cache is below `limit`, except `keep` and entries that a process
    has locked."""
    limit = limit_bytes() if limit is None else limit
    found = sorted(_files(os.path.dirname(os.path.dirname(keep))))
    total = sum(size for _, size, _ in found)
    for _, size, path in found:
        if total <= limit:
            return
        if path != keep and _remove(path):
            total -= size


def _remove(path: str) -> bool:
    """Delete a file if no process has locked it. Return whether the file no longer exists."""
    try:
        with open(path, "rb") as file:
            if not try_lock(file.fileno()):
                return False
            os.remove(path)
    except FileNotFoundError:  # another process was first
        return True
    except OSError:
        return False
    return True


def _files(folder: str) -> Iterator[tuple[float, int, str]]:
    """Yield (time of last use, size in bytes, path) of each file below a folder."""
    for below, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(below, name)
            with suppress(OSError):
                found = os.stat(path)
                yield max(found.st_atime, found.st_mtime), found.st_size, path
