"""Signals that ask a run to stop after the current step.

SIGINT, SIGHUP             from a terminal
SIGTERM, SIGUSR1, SIGUSR2  from schedulers such as Slurm and Kubernetes

A thread receives them, so that a rank that hangs in a collective still exits when the time to stop is over. A
checkpoint that is being written has another time limit, because an unfinished checkpoint is worthless.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

from declarative_train.engine.failures import limit_s

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
EXIT_STOPPED = 75
EXIT_FAILED = 3
SIGNALLED = 128  # added to a signal's number: the exit code of a process that it ended
CLOSING_GRACE_S = 1.0  # if a sibling rank has exited, no step can end any more
LOOK_S = 0.05


class Saving:
    """Times of the saves of checkpoints, in seconds of `time.monotonic`. `since_s`: start of the current save, or None.
    `ended_s`: end of the last save."""

    def __init__(self) -> None:
        self.since_s: float | None = None
        self.ended_s = 0.0

    @contextmanager
    def going_on(self) -> Iterator[None]:
        self.since_s = time.monotonic()
        try:
            yield
        finally:
            self.since_s, self.ended_s = None, time.monotonic()


SAVING = Saving()


class StopRequest:
    """Request to stop this process, made by a signal. Call `install` from the main thread, and `restore` at the end.

    `on_first`   called at the first signal
    `on_second`  called at the second; None: it is ignored, because a rank may get one Ctrl-C twice
    `on_late`    called if no step ends in time after the first signal; None: no time limit
    `is_closing` returns whether another rank has exited, so that no step can be completed
    `number`     the first signal; None if there was none
    `raises`     whether a second signal raises KeyboardInterrupt in the main thread
    """

    def __init__(
        self,
        *,
        is_closing: Callable[[], bool] = lambda: False,
        on_first: Callable[[], None] | None = None,
        on_second: Callable[[], None] | None = None,
        on_late: Callable[[], None] | None = None,
        raises: bool = False,
    ) -> None:
        self.number: int | None = None
        self._is_finished = self._is_repeated = False
        self._is_closing = is_closing
        self._closes = False
        self._on_first = on_first
        self._on_second = on_second
        self._on_late = on_late
        self._raises = raises
        self._before: dict[signal.Signals, Any] = {}
        self._wakeup_before = -1
        self._read, self._write = -1, -1

    @property
    def is_asked(self) -> bool:
        return self.number is not None

    def install(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._wakeup_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in STOP_SIGNALS:
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue  # nohup
            self._before[number] = signal.signal(number, self._receive)
        os.register_at_fork(after_in_child=self._forget)
        threading.Thread(target=self._watch, args=(self._read,), name="signals", daemon=True).start()

    def finish(self) -> None:
        """Record that the work of this process is done. From now on, signals are ignored. But if another rank has
        exited, a signal ends this process at once with code 0, so that the launcher does not wait for it."""
        self._is_finished = True

    def restore(self) -> None:
        """Restore the previous signal handlers and end the watching thread."""
        if self._write < 0:
            return
        signal.set_wakeup_fd(self._wakeup_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._write)
        self._write = -1

    def _receive(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal in the main thread: if `raises` is set, raise KeyboardInterrupt at the second signal. The
        thread that watches for signals does everything else."""
        if self._is_repeated and self._raises:
            raise KeyboardInterrupt
        self._is_repeated = True

    def _forget(self) -> None:
        """Stop writing signals to the pipe. A forked child must do so, because its parent reads the same pipe."""
        if self._write >= 0 and threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(-1)

    def _watch(self, source: int) -> None:
        while True:
            try:
                numbers = os.read(source, 16)
            except OSError:
                return
            if not numbers:
                os.close(source)
                return
            for number in numbers:
                if number in STOP_SIGNALS:
                    self._handle(number)

    def _handle(self, number: int) -> None:
        if self._is_finished:
            if self._is_closing():
                exit_process(0)
            return
        self._closes = self._is_closing()
        if self.is_asked:
            if self._on_second is not None:
                self._on_second()
            return
        self.number = number
        if self._on_first is not None:
            self._on_first()
        if self._on_late is not None:
            threading.Thread(target=self._wait_out, args=(self._on_late,), name="grace", daemon=True).start()

    def _wait_out(self, on_late: Callable[[], None]) -> None:
        begun_s = time.monotonic()
        while not self._is_late(begun_s):
            time.sleep(LOOK_S)
        on_late()

    def _is_late(self, begun_s: float) -> bool:
        """Return whether the time for stopping the run is over. `begun_s`: time of the first signal. The limit is:

        another rank has exited  `CLOSING_GRACE_S` after the first signal
        a save is in progress    `DTRAIN_SAVE_S` after the start of the save
        otherwise                `DTRAIN_GRACE_S` after the first signal or the end of the last save, whichever is
        later"""
        now_s, since_s = time.monotonic(), SAVING.since_s
        if self._is_finished:
            return False
        if self._closes:
            return now_s - begun_s >= CLOSING_GRACE_S
        if since_s is not None:
            return now_s - since_s >= limit_s("DTRAIN_SAVE_S")
        return now_s - max(begun_s, SAVING.ended_s) >= limit_s("DTRAIN_GRACE_S")


def code_without_save(loses: bool, number: int | None) -> int:
    """Return the exit code of a run that a signal stopped without saving a checkpoint. It is 128 plus the signal's
    number, as for a process that the signal killed. If completed steps are lost (`loses`), it is the code of a failed
    run. `number`: the signal's number; None means SIGTERM."""
    return EXIT_FAILED if loses else SIGNALLED + (number or signal.SIGTERM)


def late_reason() -> str:
    """Return the clause of a message that says what took longer than its time limit: the save in progress or, without a
    save, the step."""
    if SAVING.since_s is not None:
        return f"since the checkpoint was not written within {limit_s('DTRAIN_SAVE_S'):g} s (DTRAIN_SAVE_S)"
    return f"since no step finished within {limit_s('DTRAIN_GRACE_S'):g} s (DTRAIN_GRACE_S)"


def exit_process(code: int) -> NoReturn:
    """Exit at once with an exit code, without Python's cleanup. The cleanup takes a second, and threads of torch and
    gloo may abort it (docs/torch-facts.md, section 4)."""
    flush()
    end_loaders()
    os._exit(code)


def end_loaders() -> None:
    """Kill the worker processes of the data loader. Otherwise they would run for five seconds after the exit of this
    process, and the launcher would notice the exit only then."""
    loaders = [child for child in multiprocessing.active_children() if child.daemon]
    if loaders and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler would report their end as a failure
    for loader in loaders:
        loader.kill()


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
