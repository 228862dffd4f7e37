"""Prefetch: results of numbered work in order, made ahead by a thread or by loader processes.

An error is raised in place of its result. Closing the iterator early ends the thread or the processes.
"""

from __future__ import annotations

import atexit
import multiprocessing.util  # registers its own end of the interpreter, before ours so that ours comes first
import signal
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess as Process
from typing import Generic, TypeVar
from weakref import WeakSet

from declarative_train.data.spec import DataError
from declarative_train.data.stall_report import CLOSE_S, LOOK_S, Wait, format_wait
from declarative_train.files.file_activity import ActivitySlots, FileActivity, activity_of, set_file

T = TypeVar("T")
DEPTH = 2  # results that lie ready, per loader
_WORKERS: WeakSet[Process] = WeakSet()  # of all iterators


def ahead(make: Callable[[int], T], first: int, count: int, depth: int = DEPTH) -> Iterator[T]:
    """Yield `make(first)` to `make(first + count - 1)`, from a thread that is at most `depth` results ahead.

    The thread starts when the first result is requested, in the process that requests it: no thread crosses a fork.
    """
    results: _Results[T] = _Results(depth)
    thread = threading.Thread(target=results.fill, args=(make, first, count), name="dtrain-read-ahead", daemon=True)
    thread.start()
    try:
        for _ in range(count):
            yield results.take(thread)
    finally:
        results.close()
        thread.join(CLOSE_S)  # one that a file does not answer is left behind


@dataclass(frozen=True, slots=True)
class _Failure:
    error: BaseException


class _Results(Generic[T]):
    """Bounded queue that the reader can close while the writer waits for space."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._ready: deque[T | _Failure] = deque()
        self._is_closed = False
        self._changed = threading.Condition()

    def fill(self, make: Callable[[int], T], first: int, count: int) -> None:
        for number in range(first, first + count):
            set_file(None)
            try:
                result: T | _Failure = make(number)
            except BaseException as error:  # handed over: raised where the result is waited for
                result = _Failure(error)
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or len(self._ready) < self._depth)
                self._ready.append(result)
                self._changed.notify_all()
                if self._is_closed or isinstance(result, _Failure):
                    return

    def take(self, thread: threading.Thread) -> T:
        """Return the next result, which `thread` makes."""
        wait = Wait(lambda: activity_of(thread.ident))
        with self._changed:
            while not self._changed.wait_for(lambda: bool(self._ready), LOOK_S):
                wait.look()
            result = self._ready.popleft()
            self._changed.notify_all()
        if isinstance(result, _Failure):
            raise result.error
        return result

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


def by_workers(make: Callable[[int], T], first: int, count: int, num_workers: int) -> Iterator[T]:
    """Yield the same from `num_workers` processes, which take turns; each is at most `DEPTH` results ahead.

    They are forked from this process, so that they share its data, and are workers of torch's DataLoader: results come
    through shared memory, a dead worker is noticed, and no worker outlives its parent.
    """
    import torch
    from torch.utils.data import DataLoader

    slots = ActivitySlots(num_workers)
    with warnings.catch_warnings():
        # more loaders than cores: lint reports it, at the key in the recipe
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        loader: DataLoader[T | _Lost] = DataLoader(
            _Numbered(make, first, count),  # type: ignore[arg-type]
            batch_size=None,
            collate_fn=_as_it_is,
            num_workers=num_workers,
            prefetch_factor=DEPTH,
            worker_init_fn=partial(_start, slots),
            timeout=LOOK_S,
            multiprocessing_context="fork" if "fork" in multiprocessing.get_all_start_methods() else None,
            generator=torch.Generator(),  # not the global one: what the model draws must not depend on loaders
        )
        iterator = iter(loader)
    _WORKERS.update(iterator._workers)  # type: ignore[attr-defined]
    try:
        for number in range(count):
            result = _next(iterator, slots, number % num_workers)
            if isinstance(result, _Lost):
                raise DataError(result.message)
            yield result
    finally:
        try:
            iterator._shutdown_workers()  # type: ignore[attr-defined]
        except RuntimeError as error:  # another one was lost meanwhile; torch has ended them all the same
            if "DataLoader worker" not in str(error):
                raise
        _end(iterator._workers)  # type: ignore[attr-defined]  # torch sends SIGTERM to those that do not answer


@atexit.register
def _end(workers: Iterable[Process] = _WORKERS) -> None:
    """Kill the remaining workers: multiprocessing would send them SIGTERM, and wait for them without a limit."""
    for worker in set(workers) & set(multiprocessing.active_children()):
        worker.kill()
        worker.join()


def _next(iterator: Iterator[T], slots: ActivitySlots, turn: int) -> T:
    """Return the next result of the process whose turn it is."""

    def doing() -> FileActivity | None:
        found = slots.of(turn)
        return found and found[1]._replace(who=f"loader process {turn} (pid {found[0]})")

    wait = Wait(doing)
    while True:
        try:
            return next(iterator)
        except RuntimeError as error:
            if "DataLoader timed out" in str(error):
                wait.look()
                continue
            if "DataLoader worker" not in str(error):
                raise
            found = doing()
            last = "" if found is None or found.path is None else f"; {format_wait(found, time.monotonic())}"
            raise DataError(f"a loader process was lost: {str(error).splitlines()[0]}{last}") from error


@dataclass(frozen=True, slots=True)
class _Lost:
    """Error of a loader process, as text, since not every exception can be pickled."""

    message: str


class _Numbered(Generic[T]):
    """Map-style dataset: entry k is the result of number `first + k`."""

    def __init__(self, make: Callable[[int], T], first: int, count: int) -> None:
        self._make = make
        self._first = first
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> T | _Lost:
        set_file(None)
        try:
            return self._make(self._first + index)
        except DataError as error:
            return _Lost(str(error))


def _as_it_is(result: T) -> T:
    return result


def _start(slots: ActivitySlots, worker: int) -> None:
    """Ignore the signals that stop a run: they are handled by the rank.

    A terminal and Slurm send them to every process of a run, and the rank still needs data up to the end of its step.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    slots.mine(worker)
