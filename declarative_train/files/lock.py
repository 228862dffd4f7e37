"""Lock of a file between processes: one process writes, the others wait or continue without the lock.

The lock (flock) belongs to the open file, which forked processes inherit. So the lock lasts until one of these
processes releases it, or until all have ended, even by a crash. A lock file names the process that holds the lock."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from declarative_train.files.paths import SourceError, format_path

STUCK_S = 300.0  # a process without progress for so long is stuck; reading one long or remote text takes a while
_POLL_S = 0.01
_HELD = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


class FileLock:
    """Exclusive lock on a file, for one file at a time. `handle`: descriptor of the locked file, -1 if this process
    does not hold the lock. `problem`: the error of a file system that does not support locks. On such a file system
    every process gets the lock."""

    def __init__(self) -> None:
        self.path = ""
        self.handle = -1
        self.problem: OSError | None = None
        self._touched_s = 0.0

    def take(self, path: str, waits: Callable[[int], bool], mode: int = 0o644) -> bool:
        """Lock the file `path`. Return True if this process has the lock, or if the file system has no locks (`problem`
        is then set). While another process holds the lock, call `waits` with the file descriptor; if it returns False,
        return False. `mode`: permissions of the file if it is created. Raises OSError if the file cannot be opened."""
        self.path, locked = path, False
        while not locked:
            self.handle = os.open(path, os.O_RDWR | os.O_CREAT, mode)
            try:
                if locked := self._try():
                    locked = _is_at(self.handle, path)  # else another process removed it after it was opened here
                elif waits(self.handle):
                    time.sleep(_POLL_S)
                else:
                    return False
            finally:
                if not locked:
                    os.close(self.handle)
                    self.handle = -1
        return True

    def _try(self) -> bool:
        try:
            return try_lock(self.handle)
        except OSError as error:
            self.problem = error
            return True

    def name_holder(self) -> None:
        """Write the process id and the host of this process to the lock file, unless the disk is full."""
        with suppress(OSError):
            os.truncate(self.handle, 0)
            os.pwrite(self.handle, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)

    def touch(self) -> None:
        """Update the time of the lock file, at most once per second, to show the waiting processes that this one makes
        progress."""
        if self.handle != -1 and time.monotonic() - self._touched_s > 1:
            self._touched_s = time.monotonic()
            with suppress(OSError):
                os.utime(self.handle)

    def release(self, *, remove: bool = True) -> None:
        """Release the lock. Processes forked from this one then no longer hold it either. `remove`: delete the file
        too."""
        if self.handle == -1:
            return
        with suppress(OSError):  # the folder may be gone, or its disk
            if remove and _is_at(self.handle, self.path):
                os.unlink(self.path)
        with suppress(OSError):
            _flock(self.handle, "LOCK_UN")
        os.close(self.handle)
        self.handle, self.problem = -1, None


@contextmanager
def hold_lock(path: str, doing: str) -> Iterator[FileLock]:
    """Hold the lock of the file `path` during the `with` block. While another process holds the lock, wait for it as
    long as it makes progress, which it shows by `FileLock.touch`. `doing`: a text such as "converts a.csv", which
    messages add to "process 12". Raises OSError, and SourceError if the other process makes no progress."""
    lock, seen, seen_s = FileLock(), 0, 0.0

    def waits(handle: int) -> bool:
        nonlocal seen, seen_s
        pid = read_holder(handle).get("pid")
        who, now = f"process {pid}" if pid else "another process", os.fstat(handle).st_mtime_ns
        if not seen:
            print(f"dtrain: waiting for {who}, which {doing}", file=sys.stderr)
        if now != seen:
            seen, seen_s = now, time.monotonic()
        elif time.monotonic() - seen_s > STUCK_S:
            message = f"{who} {doing} and has made no progress for {STUCK_S:.0f} s"
            raise SourceError("unreadable", message, help=f"stop it: it holds the lock {format_path(path)}")
        return True

    lock.take(path, waits)
    lock.name_holder()
    try:
        yield lock
    finally:
        lock.release()


def try_lock(handle: int, *, shared: bool = False) -> bool:
    """Lock an open file without waiting. Return False if another process holds a lock that excludes this one. `shared`:
    other processes can have a shared lock of the file too. Raises OSError if the file system does not support locks."""
    try:
        _flock(handle, "LOCK_SH" if shared else "LOCK_EX")
    except OSError as error:
        if error.errno not in _HELD:
            raise
        return False
    return True


def open_shared(path: str) -> int | None:
    """Open a file with a shared lock, which prevents its removal, and return its descriptor. Return None if the file
    does not exist or a process writes it. Raises OSError."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    with suppress(OSError):  # without locks the file may be removed while it is read
        if not try_lock(handle, shared=True) or not _is_at(handle, path):
            os.close(handle)
            return None
    return handle


def read_holder(handle: int) -> dict[str, Any]:
    """Return a dict with the `pid` and `host` that `name_holder` wrote to an open lock file, or {} if there are
    none."""
    try:
        found = json.loads(os.pread(handle, 1 << 12, 0))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_at(handle: int, path: str) -> bool:
    """Return whether the open file `handle` is still the file at `path`, which may have been deleted or replaced by a
    new file."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _flock(handle: int, how: str) -> None:
    import fcntl

    fcntl.flock(handle, getattr(fcntl, how) | fcntl.LOCK_NB)
