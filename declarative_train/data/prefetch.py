"""Prefetching: results are computed ahead of their use by threads or loader processes, yielded in order, and copied to
a GPU.

An error is raised when its result is due. Closing the iterator early ends the threads or processes. Waits of more than
half a minute are reported, with the file that is being read. A long wait of the training loop becomes an error.
"""

from __future__ import annotations

import atexit

# imported first: functions of `atexit` run in reverse order, and ours must run before that of multiprocessing
import multiprocessing.util
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess as Process
from typing import TYPE_CHECKING, Any, Generic, TypeGuard, TypeVar
from weakref import WeakSet

from declarative_train.data.batch import Batch, move_batch, unpack_batch
from declarative_train.data.spec import DataError
from declarative_train.files.file_activity import ActivitySlots, FileActivity, activity_of, is_loader, note, set_file
from declarative_train.files.open_files import format_path

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
DEPTH = 2  # results that each loader process has ready
_WORKERS: WeakSet[Process] = WeakSet()  # loader processes of all iterators
LOOK_S = 2.0  # seconds between two checks of a wait
REPORT_S = 30.0
CLOSE_S = 10.0  # seconds in which a thread must finish its work when its results are no longer needed
OURS = "dtrain-"  # prefix of the names of threads that make data


def _on_stderr(message: str) -> None:
    print(f"dtrain: {message}", file=sys.stderr, flush=True)


class Patience:
    """Limits of waiting for data: a wait of more than `limit_s` seconds without progress is an error. The function
    `report` shows the message about a long wait."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.report: Callable[[str], None] = _on_stderr
        self.limit_s = 600.0


PATIENCE = Patience()


class Wait:
    """Timer of one wait for data, which reports a long wait. `of`: function that returns the current activity of the
    thread or process that makes the data, such as the file that it reads; None if this is unknown."""

    def __init__(self, of: Callable[[], FileActivity | None]) -> None:
        self._of = of
        self._begun = time.monotonic()
        self._report_s = REPORT_S

    def look(self) -> None:
        """Report the wait if it has lasted long. Call this repeatedly while waiting. Raises DataError after
        `PATIENCE.limit_s` seconds without progress."""
        now, doing = time.monotonic(), self._of()
        if is_loader() or threading.current_thread().name.startswith(OURS):
            note(doing or FileActivity(None, self._begun))
            return
        waited_s = now - self._begun
        still_s = min(waited_s, now - doing.since) if doing is not None else waited_s
        if still_s >= PATIENCE.limit_s:
            hint = "help: a run with a larger DTRAIN_TIMEOUT_S waits longer"
            raise DataError(f"no data for {still_s:.0f} s: {format_wait(doing, now)}; {hint}")
        if waited_s >= self._report_s:
            self._report_s = 2 * waited_s
            PATIENCE.report(f"the next batch has not come for {waited_s:.0f} s: {format_wait(doing, now)}")


def format_wait(doing: FileActivity | None, now: float) -> str:
    if doing is None:
        return "its producer is unknown"
    who = doing.who or "a thread of this process"
    what = "been busy" if doing.path is None else f"been reading {format_path(doing.path)}"
    return f"{who} has {what} for {now - doing.since:.0f} s"


def ahead(make: Callable[[int], T], first: int, count: int, depth: int = DEPTH) -> Iterator[T]:
    """Yield `make(first)` to `make(first + count - 1)`. A thread computes up to `depth` results before they are
    requested.

    The thread starts when the first result is requested, in the process that requests it: threads do not survive a
    fork."""
    numbers = range(first, first + count)
    # room for one more: the result that the thread is making
    made = Prefetcher(make, iter(numbers), lambda _: 1, depth + 1, 1)
    try:
        for number in numbers:
            result = made.get(number)
            made.drop(number.__eq__)
            yield result
    finally:
        made.close()


@dataclass(frozen=True, slots=True)
class _Failure:
    error: BaseException


class Prefetcher(Generic[K, T]):
    """Results of `make(name)` for each of `names`, computed ahead in that order by threads of this process.

    The results in memory have a total size of at most `room`; `size_of(name)` is the size of one. A result is made
    beyond this limit only if `get` waits for it, or if `get` has returned all results in memory."""

    def __init__(
        self,
        make: Callable[[K], T],
        names: Iterator[K],
        size_of: Callable[[K], int],
        room: int,
        threads: int,
    ) -> None:
        self._make = make
        self._names = names
        self._size_of = size_of
        self._room = room
        self._sizes: dict[K, int] = {}  # sizes of the results that are made or being made
        self._made: dict[K, T | _Failure] = {}
        self._next: K | None = next(names, None)
        self._taken: set[K] = set()
        self._wanted: K | None = None
        self._by: dict[K, int] = {}  # id of the thread that makes each result
        self._failure: _Failure | None = None
        self._is_closed = False
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._run, name=f"{OURS}prefetch-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        while (name := self._claim()) is not None:
            try:
                made: T | _Failure = self._make(name)
            except BaseException as error:  # `get` raises it in the thread that asks for this result
                made = _Failure(error)
            with self._changed:
                self._made[name] = made
                self._by.pop(name, None)
                if isinstance(made, _Failure):  # no result after a failure is needed
                    self._next, self._failure = None, made
                self._changed.notify_all()

    def _claim(self) -> K | None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._next is None or self._has_room())
            name = self._next
            if self._is_closed or name is None:
                return None
            self._sizes[name] = self._size_of(name)
            self._by[name] = threading.get_ident()
            set_file(None)
            self._next = next(self._names, None)
            return name

    def _has_room(self) -> bool:
        assert self._next is not None
        if self._wanted is not None and self._wanted not in self._sizes:
            return True
        if self._sizes.keys() <= self._taken:  # all results are in use: at least one more is made meanwhile
            return True
        return sum(self._sizes.values()) + self._size_of(self._next) <= self._room

    def get(self, name: K) -> T:
        """Wait for the result of `make(name)` and return it. The result is kept until `drop` removes it."""
        with self._changed:
            if name not in self._made:
                self._wanted = name
                self._changed.notify_all()
                wait = Wait(lambda: activity_of(self._by.get(name)))
                while not self._changed.wait_for(lambda: name in self._made or self._cannot_come(name), LOOK_S):
                    wait.look()
                self._wanted = None
            if name not in self._taken:  # otherwise threads would wake without need
                self._taken.add(name)
                self._changed.notify_all()
            if name not in self._made and self._failure is not None:
                raise self._failure.error  # nothing is made after a failure
            found = self._made[name]
        if isinstance(found, _Failure):
            raise found.error
        return found

    def _cannot_come(self, name: K) -> bool:
        return self._is_closed or (self._next is None and name not in self._sizes)

    def drop(self, is_done: Callable[[K], bool]) -> list[T]:
        """Remove from memory the results for which `is_done(name)` is true, and return them. `name`: the argument with
        which `make` computed the result."""
        with self._changed:
            done = [name for name in self._made if is_done(name)]
            found = [self._made.pop(name) for name in done]
            for name in done:
                del self._sizes[name]
                self._taken.discard(name)
            self._changed.notify_all()
        return [each for each in found if not isinstance(each, _Failure)]

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        until = time.monotonic() + CLOSE_S
        for thread in self._threads:
            # a thread that waits for a file is abandoned after this time
            thread.join(max(0.0, until - time.monotonic()))
        self._made.clear()  # a reference cycle with the threads would keep them until the next garbage collection
        self._sizes.clear()


def is_gpu(device: torch.device | None) -> TypeGuard[torch.device]:
    """Return whether the device is a CUDA device, to which data can be copied while it computes."""
    return device is not None and device.type == "cuda"


def from_workers(
    made: Iterator[list[Batch]], first: int, count: int, device: torch.device | None
) -> Iterator[list[Batch]]:
    """Yield `count` lists of batches, unpacked and moved to `device` (None: left in host memory). `made`: the packed
    lists from loader processes. `first`: step of the first list."""
    return from_host(([unpack_batch(batch) for batch in batches] for batches in made), first, count, device)


def from_host(
    made: Iterator[list[Batch]], first: int, count: int, device: torch.device | None
) -> Iterator[list[Batch]]:
    """Yield the lists of batches in `made`, moved to the device (None: left in host memory). For a GPU, a thread copies
    them ahead of their use. `count`: how many lists `made` has. `first`: step of the first list."""
    if is_gpu(device) and count:
        yield from copy_ahead(in_thread(made), first, count, device)
        return
    for batches in made:
        yield [move_batch(batch, device) for batch in batches]


def copy_ahead(
    make: Callable[[int], list[Batch]], first: int, count: int, device: torch.device
) -> Iterator[list[Batch]]:
    """Yield the `count` results `make(first)`, `make(first + 1)`, ... on the device.

    A thread computes and copies them ahead, on a CUDA stream of its own. On the computing stream, a copy would wait for
    earlier kernels, and later kernels would wait for the copy.
    """
    import torch

    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def copy(number: int) -> tuple[list[Batch], Any]:
        # a new thread uses GPU 0, where the end of the `with` block would create a CUDA context
        torch.cuda.set_device(device)
        on_host = make(number)
        with torch.cuda.stream(stream):
            batches = [move_batch(batch, device) for batch in on_host]
            return batches, stream.record_event()

    made = ahead(copy, first, count)
    try:
        for batches, event in made:
            yield wait_for_copies(batches, event, device)
    finally:
        if isinstance(made, Generator):
            made.close()


def wait_for_copies(batches: list[Batch], event: Any, device: torch.device) -> list[Batch]:
    """Make the computing stream wait for the copies, and return the batches. Their memory belongs to the copying
    stream, so it is marked as used by the computing stream; otherwise it could be reused too early."""
    import torch

    stream = torch.cuda.current_stream(device)
    stream.wait_event(event)
    for batch in batches:
        for tensor in (*batch.tensors.values(), batch.row_weight):
            if tensor is not None:
                tensor.record_stream(stream)
    return batches


def in_thread(made: Iterator[list[Batch]]) -> Callable[[int], list[Batch]]:
    """Return a function that returns the next item of `made` at each call. Its argument, the number of the item, is
    ignored; `copy_ahead` passes it.

    The first item is taken here already, because taking it starts the loader processes. They must be forked before
    `copy_ahead` starts its thread: a fork while another thread computes may inherit a lock that is never released."""
    waiting = [next(made)]

    def take(_: int) -> list[Batch]:
        return waiting.pop() if waiting else next(made)

    return take


def by_workers(make: Callable[[int], T], first: int, count: int, num_workers: int) -> Iterator[T]:
    """Yield `make(first)` to `make(first + count - 1)`, computed by `num_workers` loader processes in turn. Each
    process computes at most `DEPTH` results ahead.

    The processes are forked from this one, so that they share its data. They are workers of torch's DataLoader: results
    come through shared memory, a dead worker is noticed, and no worker outlives its parent.
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
        except RuntimeError as error:  # another loader process was lost meanwhile; torch ended all of them nevertheless
            if "DataLoader worker" not in str(error):
                raise
        if not sys.is_finalizing():  # `_end_all` has ended them then
            _end(iterator._workers)  # type: ignore[attr-defined]  # torch sends SIGTERM to those that do not answer


@atexit.register
def _end_all() -> None:
    """Kill the loader processes of the iterators that are still open when this process exits. multiprocessing would
    send SIGTERM and wait without a limit.

    torch's handler of SIGCHLD is removed first: it raises an error when a loader process is killed, so that the others
    would not be killed.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _end(_WORKERS)


def _end(workers: Iterable[Process]) -> None:
    for worker in set(workers) & set(multiprocessing.active_children()):
        worker.kill()
        worker.join()


def _next(iterator: Iterator[T], slots: ActivitySlots, turn: int) -> T:
    """Return the next result of the loader processes, and report a long wait for it. `turn`: index of the process that
    computes this result. `slots`: what each process is doing with files, for the report."""

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
    """Error of a loader process as text. The text is sent instead of the exception, because not every exception can be
    pickled."""

    message: str


class _Numbered(Generic[T]):
    """Dataset for torch's DataLoader: entry k is `make(first + k)`, or `_Lost` if that raises DataError."""

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
    """Prepare a loader process: ignore the signals that stop a run. Terminals and Slurm send these signals to every
    process of a run, but the rank needs data until its step ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    slots.mine(worker)
