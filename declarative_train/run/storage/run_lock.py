"""Lock on a run's folder, so that only one process writes to it. The lock file names this process.

Forked ranks and loader workers inherit the lock, so it lasts until the last of them has exited."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from declarative_train.engine.failures import RunFailure
from declarative_train.files.lock import FileLock, read_holder, try_lock
from declarative_train.run.storage.remote_dir import Upload

LOCK = "lock"
ORPHANS_S = 15.0  # how long ranks and loader workers may outlive the process that started them


class RunLock:
    """Lock on one run's folder. `is_held`: this process has the lock; always False if the file system does not support
    locks. While the lock is held, the folder may also be copied to a URL (`upload`)."""

    def __init__(self) -> None:
        self._lock = FileLock()
        self._upload: Upload | None = None

    @property
    def is_held(self) -> bool:
        return self._lock.handle != -1

    def take(self, run_dir: Path) -> str | None:
        """Lock the folder. Return a notice if the file system does not support locks, otherwise None. Raises RunFailure
        if another process has the lock."""
        self.release()
        deadline_s = time.monotonic() + ORPHANS_S

        def waits(handle: int) -> bool:
            holder = read_holder(handle)
            if _may_be_running(holder) or time.monotonic() > deadline_s:
                raise RunFailure(_in_use(run_dir, holder))
            return True

        self._lock.take(str(run_dir / LOCK), waits)
        if (problem := self._lock.problem) is not None:
            self.release()
            why = (problem.strerror or str(problem)).lower()
            return f"{run_dir} cannot be locked ({why}): another process could write to it"
        self._lock.name_holder()
        return None

    def upload(self, run_dir: Path, url: str) -> None:
        """Start a process that copies the folder to a URL, until `release` is called."""
        if self._upload is None:
            self._upload = Upload(run_dir, url)

    def release(self) -> None:
        if self._upload is not None:
            self._upload.finish()
            self._upload = None
        self._lock.release()


def is_locked(run_dir: Path) -> bool:
    """Return whether a process has locked a run. Processes of other machines count if the file system shares locks."""
    try:
        with open(run_dir / LOCK, "rb") as file:
            return not try_lock(file.fileno(), shared=True)
    except OSError:  # no such file, or no locks
        return False


def _may_be_running(holder: dict[str, object]) -> bool:
    """Return whether the run that has the lock may still be running: the process that started it exists or is on
    another machine. `holder`: content of the lock file."""
    pid = holder.get("pid")
    if holder.get("host") != socket.gethostname() or not isinstance(pid, int):
        return holder != {}
    return is_alive(pid)


def _in_use(run_dir: Path, holder: dict[str, object]) -> str:
    host, pid = holder.get("host", "?"), holder.get("pid", "?")
    where = "this machine" if host == socket.gethostname() else f"the machine {host}"
    return (
        f"the run in {run_dir} is still running: process {pid} on {where} writes to it; help: wait for its end, or "
        "stop it (SIGTERM: with a checkpoint) and repeat the command"
    )


def is_alive(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
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
