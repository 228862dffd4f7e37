"""Record of which file each thread reads, and since when. Reports of stalls show it.

A loader process also writes the activity of its main thread into memory that it shares with its parent."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from mmap import mmap
from threading import get_ident
from typing import NamedTuple

_SLOT_BYTES = 2048
_LENGTH_BYTES = 4


class FileActivity(NamedTuple):
    """Activity of a thread. `path`: the file that the thread reads, or None if it does other work. `since`: start of
    the activity, a time of `time.monotonic`, which is one clock for all processes of a machine. `who`: a text that
    names the loader process which does the reading; None if a thread of this process does it."""

    path: str | None
    since: float
    who: str | None = None


_doing: dict[int, FileActivity] = {}
_mirror: tuple[int, Callable[[FileActivity], None]] | None = None


def set_file(path: str | None) -> None:
    """Record that the calling thread now reads the file `path` or, if `path` is None, that it does other work."""
    note(FileActivity(path, time.monotonic()))


def note(doing: FileActivity) -> None:
    """Record `doing` as the activity of the calling thread."""
    thread = get_ident()
    _doing[thread] = doing
    if _mirror is not None and _mirror[0] == thread:
        _mirror[1](doing)


def activity_of(thread: int | None) -> FileActivity | None:
    """Return the activity that was recorded last for the thread with the id `thread`. Return None if there is none."""
    return None if thread is None else _doing.get(thread)


def is_loader() -> bool:
    """Return whether the current process is a loader process."""
    return _mirror is not None


class ActivitySlots:
    """Shared memory in which loader processes show their activity to their parent, one slot per process. Create it
    before the processes are forked; each process then calls `mine` once, and the parent reads the slots with `of`."""

    def __init__(self, count: int) -> None:
        self._bytes = mmap(-1, count * _SLOT_BYTES)  # shared with forked processes

    def mine(self, number: int) -> None:
        """Publish which file the calling thread reads, from now on, in slot `number`. The parent process can read the
        slot. A loader process calls this once, with its own slot."""
        global _mirror
        _mirror = get_ident(), lambda doing: self._write(number, doing)
        set_file(None)

    def _write(self, number: int, doing: FileActivity) -> None:
        path = doing.path
        if path is not None and len(path.encode("utf-8", "replace")) > _SLOT_BYTES // 8:
            path = f"…{path[-_SLOT_BYTES // 16 :]}"  # each character takes up to 12 bytes, escaped
        text = json.dumps([os.getpid(), path, doing.since, doing.who]).encode()[: _SLOT_BYTES - _LENGTH_BYTES]
        begin = number * _SLOT_BYTES
        self._bytes[begin : begin + _LENGTH_BYTES] = bytes(_LENGTH_BYTES)
        self._bytes[begin + _LENGTH_BYTES : begin + _LENGTH_BYTES + len(text)] = text
        self._bytes[begin : begin + _LENGTH_BYTES] = len(text).to_bytes(_LENGTH_BYTES, "little")

    def of(self, number: int) -> tuple[int, FileActivity] | None:
        """Return the process id and the activity from slot `number`. Return None if the slot's process has not started,
        or is writing to the slot now."""
        begin = number * _SLOT_BYTES
        size = int.from_bytes(self._bytes[begin : begin + _LENGTH_BYTES], "little")
        try:
            pid, path, since, who = json.loads(self._bytes[begin + _LENGTH_BYTES : begin + _LENGTH_BYTES + size])
        except ValueError:
            return None
        return pid, FileActivity(path, since, who)
