"""Function calls in forked child processes. A trace leaves state in torch (process groups, meshes, caches of shards).
Real ranks that are forked from this process later would reuse this state, so traces run in children."""

from __future__ import annotations

import gc
import os
import pickle
import resource
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from declarative_train.core.machine import num_cores

T = TypeVar("T")
LIMIT_S = 120.0  # CPU time, so that the load of the machine does not change the plan
MOST_S = 600.0  # wall time
MOST_LETTERS = 160  # of an error message
MOST_BYTES = 4 << 30  # in addition to the memory of this process
_is_child = False
_cores: int | None = None  # number of cores that this child process may use; None: all


class ChildError(Exception):
    """Error: a child process returned no result. The message is the reason in a few words."""


def usable_cores() -> int:
    """Return the number of cores that this process may use: in a child process, its share of the parent's cores."""
    return num_cores() if _cores is None else _cores


def in_children(works: Sequence[Callable[[], T]]) -> list[T]:
    """Call functions at the same time, each in a child process, and return their results. Raises the first ChildError.

    A child that calls `in_children` again runs the first function itself. The main process never does, because the
    functions leave state in torch."""
    own = works[:1] if _is_child else []
    sys.stdout.flush()
    sys.stderr.flush()
    children: dict[int, int] = {}  # pipe of a child's result -> process id
    try:
        for work in works[len(own) :]:
            reading, writing = os.pipe()
            children[reading] = _fork(work, writing, [*children, reading], max(1, usable_cores() // len(works)))
            os.close(writing)
        outcomes = [_outcome(work) for work in own]
        answers = _read(list(children), time.monotonic() + MOST_S)
        outcomes += [_read_answer(answers[reading]) for reading in children]
    finally:
        for reading, child in children.items():
            os.close(reading)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    for _, error in outcomes:
        if error:
            raise ChildError(error)
    return [found for found, _ in outcomes]  # type: ignore[misc]


def _fork(work: Callable[[], T], writing: int, others: Sequence[int], cores: int) -> int:
    child = os.fork()
    if child:
        return child
    global _is_child, _cores
    _is_child, _cores = True, cores
    gc.freeze()  # a collection would write to, and so copy, all objects of the parent: 0.2 s
    try:
        # the first backward counts GPUs, for which the driver needs more address space than the limit allows
        warnings.filterwarnings("ignore", "CUDA initialization")
        _limit_memory()
        resource.setrlimit(resource.RLIMIT_CPU, (round(LIMIT_S), round(LIMIT_S)))
        for pipe in others:
            os.close(pipe)
        with os.fdopen(writing, "wb") as stream:
            pickle.dump(_outcome(work), stream)
    finally:
        os._exit(0)


def _read_answer(answer: bytes) -> tuple[Any, str]:
    """Return (result, error text) from the bytes `answer` that a child process wrote. One of the two is empty. If the
    child ended early, return an error text."""
    try:
        found, error = pickle.loads(answer)
    except (pickle.UnpicklingError, EOFError):
        return None, f"its process ended, or used more than {LIMIT_S:g} s of CPU time"
    return found, error


def _outcome(work: Callable[[], T]) -> tuple[T | None, str]:
    try:
        return work(), ""
    except ChildError as error:
        return None, str(error)
    except Exception as error:
        return None, in_a_line(error)


def in_a_line(error: BaseException) -> str:
    """Return the first cause of an error, the end of its chain of `__cause__`, as one line of text. The other errors of
    the chain, such as those of torch's pipeline schedules, do not name the mistake."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = str(error).strip().partition("\n")[0][:MOST_LETTERS]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _limit_memory() -> None:
    """Limit the memory of this child process. Traced tensors have no values, so code that reads a size from one may get
    a huge number."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (OSError, ValueError):
        return
    limit = pages * resource.getpagesize() + MOST_BYTES
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    if hard == resource.RLIM_INFINITY or limit <= hard:
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def _read(pipes: Sequence[int], deadline_s: float) -> dict[int, bytes]:
    """Return a dict from pipe to the bytes read from it. Read until all pipes are closed or `time.monotonic` reaches
    `deadline_s`."""
    parts: dict[int, list[bytes]] = {pipe: [] for pipe in pipes}
    waiting = list(pipes)
    while waiting and (left := deadline_s - time.monotonic()) > 0:
        for pipe in select.select(waiting, [], [], left)[0]:
            part = os.read(pipe, 1 << 16)
            parts[pipe].append(part)
            if not part:
                waiting.remove(pipe)
    return {pipe: b"".join(read) for pipe, read in parts.items()}
