"""What was found out about files, kept in the user's cache for the next time: indexes, statistics, converted tables.

Each thing has a kind (a folder) and a name made of all that it follows from: paths, sizes, dates, options. The folder
is `dtrain` in `$XDG_CACHE_HOME`, else in `~/.cache`; it can be removed at any time. What was used longest ago is
removed when it holds more than `$DTRAIN_CACHE_GB` (10). A cache that cannot be written costs time, and nothing else.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from typing import Any

from declarative_train.files.paths import file_system, local_path
from declarative_train.files.remote import note, seen

_USUAL_GB = 10.0
_MOST_UNCOUNTED = 1 << 30
_FORMAT = 2
_HELD = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)

Stamp = list[int | str]
"""Of a file: its size, and a date or a tag that changes with its content."""


def stamp(path: str, *, anew: bool = False) -> Stamp | None:
    """None: nobody can say whether it is the same file the next time. `anew`: a file of another machine is asked about
    again, else what was said when its source was opened holds. Raises OSError and SourceError."""
    local = local_path(path)
    if local is not None:
        found = os.stat(local)
        return [found.st_size, str(found.st_mtime_ns)]
    known = None if anew else seen(path)
    if known is None:
        system, inner = file_system(path)
        try:
            if anew:
                system.invalidate_cache()
            known = note(path, system.info(inner))
        except Exception:  # each client has exceptions of its own; who reads the file says it
            return None
    return None if known is None or not known.tag else [known.size, known.tag]


def place_of(kind: str, *parts: object, ending: str = "json") -> str | None:
    """Where it lies, or would; None without a place for it."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if not os.path.isabs(base):
        return None
    text = json.dumps([_FORMAT, *parts], sort_keys=True, default=str)
    name = blake2b(text.encode(), digest_size=16).hexdigest()
    return os.path.join(base, "dtrain", kind, f"{name}.{ending}")


def load(place: str | None) -> Any:
    """What `save` put there, or None."""
    if place is None:
        return None
    try:
        with open(place, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):  # none, or one that was cut off: it is made again
        return None
    used(place)
    return found


def used(place: str) -> None:
    """It is not among those that go first. Its date stays, by which others see whether it is another."""
    with suppress(OSError):
        os.utime(place, ns=(time.time_ns(), os.stat(place).st_mtime_ns))


def save(place: str | None, data: object) -> None:
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
    count(os.path.getsize(place), place)


def limit_bytes() -> int:
    try:
        return int(float(os.environ["DTRAIN_CACHE_GB"]) * 1e9)
    except (KeyError, ValueError):
        return int(_USUAL_GB * 1e9)


_uncounted: int | None = None


def count(written: int, keep: str) -> None:
    """So many bytes are new. Whether there is room is looked at when the process writes first, and after each 1/32 of
    the limit: to look takes as long as there are files."""
    global _uncounted
    is_first, _uncounted = _uncounted is None, (_uncounted or 0) + written
    if is_first or _uncounted > min(_MOST_UNCOUNTED, limit_bytes() // 32):
        _uncounted = 0
        make_room(keep)


def make_room(keep: str, limit: int | None = None) -> None:
    """Remove what was used longest ago, beyond the limit, but `keep` and what a process has locked (flock)."""
    limit = limit_bytes() if limit is None else limit
    found = sorted(_files(os.path.dirname(os.path.dirname(keep))))
    total = sum(size for _, size, _ in found)
    for _, size, path in found:
        if total <= limit:
            return
        if path != keep:
            with suppress(OSError):
                with suppress(FileNotFoundError):  # another process was first
                    _remove(path)
                total -= size


def is_locked(handle: int, how: int | None = None) -> bool:
    """The lock (flock; `how`: another than the exclusive one) is ours now, or the file system has none."""
    import fcntl

    try:
        fcntl.flock(handle, (fcntl.LOCK_EX if how is None else how) | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in _HELD
    return True


def is_at(handle: int, path: str) -> bool:
    """The open file is still the one that is called so."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _remove(path: str) -> None:
    """Raises OSError; BlockingIOError: somebody has locked it."""
    import fcntl

    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.remove(path)
    finally:
        os.close(handle)


def _files(folder: str) -> Iterator[tuple[float, int, str]]:
    """(last used, bytes, path)."""
    for below, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(below, name)
            with suppress(OSError):
                found = os.stat(path)
                yield max(found.st_atime, found.st_mtime), found.st_size, path
