"""A function in a forked child: what pretended ranks leave behind in torch (groups, meshes, what it remembers of shards
by them) would be taken for their own by the real ranks that this process forks afterwards."""

from __future__ import annotations

import os
import pickle
import resource
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
LIMIT_S = 120.0  # of the processor: a machine that does other things, too, gives another plan no sooner
MOST_S = 600.0  # by the clock
MOST_LETTERS = 160  # of what an error says
MOST_BYTES = 4 << 30  # more than this process has


class ChildError(Exception):
    """It gave nothing; why, in a few words."""


def in_child(work: Callable[[], T]) -> T:
    """What it returns, which goes through pickle. Raises ChildError where it fails or takes too long."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        try:
            _limit_memory()
            resource.setrlimit(resource.RLIMIT_CPU, (round(LIMIT_S), round(LIMIT_S)))
            os.close(reading)
            with os.fdopen(writing, "wb") as stream:
                pickle.dump(_outcome(work), stream)
        finally:
            os._exit(0)
    os.close(writing)
    try:
        data = _read(reading, time.monotonic() + MOST_S)
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    try:
        found, error = pickle.loads(data)
    except (pickle.UnpicklingError, EOFError):
        raise ChildError(f"its process ended, or took longer than {LIMIT_S:g} s of the processor") from None
    if error:
        raise ChildError(error)
    value: T = found
    return value


def _outcome(work: Callable[[], T]) -> tuple[T | None, str]:
    try:
        return work(), ""
    except Exception as error:
        return None, in_a_line(error)


def in_a_line(error: BaseException) -> str:
    """The first cause of it: torch's schedules say only in which stage something failed."""
    while error.__cause__ is not None:
        error = error.__cause__
    said = str(error).strip().partition("\n")[0][:MOST_LETTERS]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _limit_memory() -> None:
    """Tensors without values may be taken for sizes of others."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (OSError, ValueError):
        return
    limit = pages * resource.getpagesize() + MOST_BYTES
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    if hard == resource.RLIM_INFINITY or limit <= hard:
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def _read(pipe: int, deadline_s: float) -> bytes:
    parts = []
    while (left := deadline_s - time.monotonic()) > 0:
        if select.select([pipe], [], [], left)[0]:
            part = os.read(pipe, 1 << 16)
            if not part:
                break
            parts.append(part)
    return b"".join(parts)
