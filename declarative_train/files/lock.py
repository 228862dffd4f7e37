"""Lock of a file between processes: one process writes, the others wait or go without.

The lock (flock) belongs to the open file. Forked processes inherit it, so it lasts until one releases it or the last of
them has ended, in whatever way; nothing needs cleaning up after a crash. A lock file names the process that holds it.
"""

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

STUCK_S = 300.0  # a process that shows no progress for so long is stuck; one text may be long or remote
_POLL_S = 0.01
_HELD = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


class FileLock:
    """Exclusive lock of one file at a time. `handle`: of the open file, -1 if this process has no lock. `problem`: why
    the file system has no locks; then every process takes the lock."""

    def __init__(self) -> None:
        self.path = ""
        self.handle = -1
        self.problem: OSError | None = None
        self._touched_s = 0.0

    def take(self, path: str, waits: Callable[[int], bool], mode: int = 0o644) -> bool:
        """Lock a file, which is created with `mode` if it does not exist. While another process has it, ask `waits`,
        with a handle of the file, whether to wait. Return whether this process has the lock. Raises OSError if the file
        cannot be opened."""
        self.path, locked = path, False
        while not locked:
            self.handle = os.open(path, os.O_RDWR | os.O_CREAT, mode)
            try:
                if locked := self._try():
                    locked = _is_at(self.handle, path)  # else its holder removed it after it was opened here
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
        """Write to the file who holds it, unless the disk is full."""
        with suppress(OSError):
            os.truncate(self.handle, 0)
            os.pwrite(self.handle, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)

    def touch(self) -> None:
        """Show the waiting processes that this one makes progress: set the file's time, once per second at most."""
        if self.handle != -1 and time.monotonic() - self._touched_s > 1:
            self._touched_s = time.monotonic()
            with suppress(OSError):
                os.utime(self.handle)

    def release(self, *, remove: bool = True) -> None:
        """Release the lock, also for forked processes, and remove the file."""
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
    """Hold a lock until the block ends. While another process holds it, wait as long as that process makes progress
    (`touch`). `doing` completes the sentence "process 12 ...". Raises OSError, and SourceError if the other process is
    stuck."""
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
    """Lock an open file without waiting, exclusively or together with others. Return False if another process has it.
    Raises OSError if the file system has no locks."""
    try:
        _flock(handle, "LOCK_SH" if shared else "LOCK_EX")
    except OSError as error:
        if error.errno not in _HELD:
            raise
        return False
    return True


def open_shared(path: str) -> int | None:
    """Open a file and lock it together with others, which prevents its removal. Return None if it does not exist or a
    process writes it. Raises OSError."""
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
    """Return what `name_holder` wrote: `pid` and `host`. Empty if nothing is known."""
    try:
        found = json.loads(os.pread(handle, 1 << 12, 0))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_at(handle: int, path: str) -> bool:
    """Return whether `path` still names the open file."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _flock(handle: int, how: str) -> None:
    import fcntl

    fcntl.flock(handle, getattr(fcntl, how) | fcntl.LOCK_NB)
