"""Which file each thread turned to last, and when: for who waits for what the thread makes.

A loader process shows what its main thread does to its parent, in memory that they share.
"""

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


class Doing(NamedTuple):
    """`since`: by `time.monotonic`, which is one clock for all processes of a machine. `who`: None is the thread
    itself; else whom it waits for."""

    path: str | None
    since: float
    who: str | None = None


_doing: dict[int, Doing] = {}
_mirror: tuple[int, Callable[[Doing], None]] | None = None


def turn_to(path: str | None) -> None:
    """This thread now reads a file; None: it begins with something new."""
    note(Doing(path, time.monotonic()))


def note(doing: Doing) -> None:
    thread = get_ident()
    _doing[thread] = doing
    if _mirror is not None and _mirror[0] == thread:
        _mirror[1](doing)


def doing_of(thread: int | None) -> Doing | None:
    return None if thread is None else _doing.get(thread)


def is_loader() -> bool:
    """Whether this is a loader process."""
    return _mirror is not None


class Slots:
    """What each of some loader processes does. Make it before they are forked; `mine` belongs into the process."""

    def __init__(self, count: int) -> None:
        self._bytes = mmap(-1, count * _SLOT_BYTES)  # shared by those that are forked

    def mine(self, number: int) -> None:
        global _mirror
        _mirror = get_ident(), lambda doing: self._write(number, doing)
        turn_to(None)

    def _write(self, number: int, doing: Doing) -> None:
        path = doing.path
        if path is not None and len(path.encode("utf-8", "replace")) > _SLOT_BYTES // 8:
            path = f"…{path[-_SLOT_BYTES // 16 :]}"  # each character takes up to 12 bytes, escaped
        text = json.dumps([os.getpid(), path, doing.since, doing.who]).encode()[: _SLOT_BYTES - _LENGTH_BYTES]
        begin = number * _SLOT_BYTES
        self._bytes[begin : begin + _LENGTH_BYTES] = bytes(_LENGTH_BYTES)
        self._bytes[begin + _LENGTH_BYTES : begin + _LENGTH_BYTES + len(text)] = text
        self._bytes[begin : begin + _LENGTH_BYTES] = len(text).to_bytes(_LENGTH_BYTES, "little")

    def of(self, number: int) -> tuple[int, Doing] | None:
        """The process and what it does; None before its start, and in the moment when it writes."""
        begin = number * _SLOT_BYTES
        size = int.from_bytes(self._bytes[begin : begin + _LENGTH_BYTES], "little")
        try:
            pid, path, since, who = json.loads(self._bytes[begin + _LENGTH_BYTES : begin + _LENGTH_BYTES + size])
        except ValueError:
            return None
        return pid, Doing(path, since, who)
