"""Functions in forked children: what pretended ranks leave behind in torch (groups, meshes, what it remembers of shards
by them) would be taken for their own by the real ranks that this process forks afterwards."""

from __future__ import annotations

import os
import pickle
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
LIMIT_S = 120.0  # of the processor: a machine that does other things, too, gives another plan no sooner
MOST_S = 600.0  # by the clock
MOST_LETTERS = 160  # of what an error says
MOST_BYTES = 4 << 30  # more than this process has


class ChildError(Exception):
    """It gave nothing; why, in a few words."""


def in_child(work: Callable[[], T]) -> T:
    """What it returns, which goes through pickle. Raises ChildError where it fails or takes too long."""
    return in_children([work])[0]


def in_children(works: Sequence[Callable[[], T]], meanwhile: Callable[[], object] | None = None) -> list[T]:
    """What each returns, all at the same time, as `in_child`. Of errors the first in their order is told. `meanwhile`
    is done here, where there is nothing but to wait."""
    sys.stdout.flush()
    sys.stderr.flush()
    children: dict[int, int] = {}  # by the pipe that they answer on
    try:
        for work in works:
            reading, writing = os.pipe()
            children[reading] = _forked(work, writing, [*children, reading])
            os.close(writing)
        if meanwhile is not None:
            meanwhile()
        answers = _read(list(children), time.monotonic() + MOST_S)
    finally:
        for reading, child in children.items():
            os.close(reading)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return [_value(answers[reading]) for reading in children]


def _forked(work: Callable[[], T], writing: int, others: Sequence[int]) -> int:
    child = os.fork()
    if child:
        return child
    try:
        _limit_memory()
        resource.setrlimit(resource.RLIMIT_CPU, (round(LIMIT_S), round(LIMIT_S)))
        for pipe in others:
            os.close(pipe)
        with os.fdopen(writing, "wb") as stream:
            pickle.dump(_outcome(work), stream)
    finally:
        os._exit(0)


def _value(answer: bytes) -> Any:
    try:
        found, error = pickle.loads(answer)
    except (pickle.UnpicklingError, EOFError):
        raise ChildError(f"its process ended, or took longer than {LIMIT_S:g} s of the processor") from None
    if error:
        raise ChildError(error)
    return found


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


def _read(pipes: Sequence[int], deadline_s: float) -> dict[int, bytes]:
    """All that comes out of each until it is closed."""
    parts: dict[int, list[bytes]] = {pipe: [] for pipe in pipes}
    waiting = list(pipes)
    while waiting and (left := deadline_s - time.monotonic()) > 0:
        for pipe in select.select(waiting, [], [], left)[0]:
            part = os.read(pipe, 1 << 16)
            parts[pipe].append(part)
            if not part:
                waiting.remove(pipe)
    return {pipe: b"".join(read) for pipe, read in parts.items()}
