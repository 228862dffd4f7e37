"""Lock on a run's folder: only one run writes to it. The lock file names the process that holds it.

The lock (flock) belongs to the open file. Forked ranks and loader workers inherit it, so it lasts until the last one
has ended, in whatever way. It needs no cleaning up after a crash.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path

from declarative_train.engine.failures import RunFailure

LOCK = "lock"
ORPHANS_S = 15.0  # how long ranks and loader workers may outlive the process that started them
_HELD = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


class RunLock:
    """Lock of one run at a time. `is_held` is also False if the file system does not support locks."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._handle = -1
        self.is_held = False

    def take(self, run_dir: Path) -> str | None:
        """Lock the folder. Returns a notice if the file system does not support locks. Raises RunFailure if another
        process holds the lock."""
        self.release()
        path = run_dir / LOCK
        deadline_s = time.monotonic() + ORPHANS_S
        while True:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                holder = _holder(handle)
                os.close(handle)
                if error.errno not in _HELD:
                    why = (error.strerror or str(error)).lower()
                    return f"nothing keeps another process from writing to {run_dir}: it cannot be locked ({why})"
                if _may_be_going(holder) or time.monotonic() > deadline_s:
                    raise RunFailure(_in_use(run_dir, holder)) from None
                time.sleep(0.05)
                continue
            if _is_at(handle, path):
                break
            os.close(handle)  # its holder deleted the file while we opened it
        os.truncate(handle, 0)
        os.write(handle, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())
        self._path, self._handle, self.is_held = path, handle, True
        return None

    def release(self) -> None:
        if self._path is None:
            return
        with suppress(OSError):  # the folder may be gone, or its disk
            self._path.unlink(missing_ok=True)
        os.close(self._handle)
        self._path, self._handle, self.is_held = None, -1, False


def is_locked(run_dir: Path) -> bool:
    """Return whether a run holds the folder: on this machine or, if the file system shares locks, on another one."""
    try:
        handle = os.open(run_dir / LOCK, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in _HELD
    finally:
        os.close(handle)
    return False


def _holder(handle: int) -> dict[str, object]:
    try:
        found = json.loads(os.pread(handle, 1 << 12, 0))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _may_be_going(holder: dict[str, object]) -> bool:
    """Return whether the run may go on: the process that started it lives, or is on another machine. If it has ended,
    its ranks are about to end, too."""
    pid = holder.get("pid")
    if holder.get("host") != socket.gethostname() or not isinstance(pid, int):
        return holder != {}
    return is_alive(pid)


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _in_use(run_dir: Path, holder: dict[str, object]) -> str:
    host, pid = holder.get("host", "?"), holder.get("pid", "?")
    where = "this machine" if host == socket.gethostname() else f"the machine {host}"
    return (
        f"the run in {run_dir} is still going on: process {pid} on {where} writes to it; help: wait for its end, or "
        "stop it (SIGTERM: with a checkpoint) and give the same command again"
    )


def is_alive(pid: int) -> bool:
    """Return whether the process lives. A zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return _answers(pid)
    return state not in ("Z", "X")


def _answers(pid: int) -> bool:
    if os.path.isdir("/proc/self"):
        return False
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True
