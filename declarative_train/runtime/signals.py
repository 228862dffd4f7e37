"""SIGTERM and SIGINT ask a run to stop at the next step; a thread hears them even while the loop waits in C++.

The C-level handler writes the signal's number to a pipe, from whichever thread the kernel chose; the watching thread
reads it. So a rank that hangs in a collective still leaves when the time of grace is over.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
EXIT_STOPPED = 75
EXIT_FAILED = 3


def grace_s() -> float:
    """Time between being asked to stop and leaving whatever happens."""
    return float(os.environ.get("DTRAIN_GRACE_S", "25"))


class StopRequest:
    """Whether somebody asked this process to stop. `install` from the main thread; `restore` when done.

    `on_first` is called for the first signal, and `grace` asked how long the loop may take to save; `on_second` for
    another one (None: it says nothing new, as a terminal's Ctrl-C reaches a rank twice); `on_late` when the grace is
    over.
    """

    def __init__(
        self,
        *,
        grace: Callable[[], float] = grace_s,
        on_first: Callable[[], None] | None = None,
        on_second: Callable[[], None] | None = None,
        on_late: Callable[[], None] | None = None,
        leave: bool = True,
    ) -> None:
        self.is_asked = False
        self.finished_code: int | None = None  # the work is done: a signal has nothing left to wait for
        self._grace = grace
        self._on_first = on_first
        self._on_second = on_second
        self._on_late = on_late or leave_now
        self._leave = leave
        self._before: dict[signal.Signals, Any] = {}
        self._wakeup_before = -1
        self._read, self._write = -1, -1

    def install(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._wakeup_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in STOP_SIGNALS:
            self._before[number] = signal.signal(number, _nothing)
        threading.Thread(target=self._watch, args=(self._read,), name="signals", daemon=True).start()

    def restore(self) -> None:
        """The handlers that were there before; the watching thread ends."""
        if self._write < 0:
            return
        signal.set_wakeup_fd(self._wakeup_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._write)
        self._write = -1

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
                    self._heard(number)

    def _heard(self, number: int) -> None:
        if self.finished_code is not None and self._leave:
            leave(self.finished_code)
        if self.is_asked:
            if self._on_second is not None:
                self._on_second()
            return
        self.is_asked = True
        if self._on_first is not None:
            self._on_first()
        if self._leave:
            timer = threading.Timer(self._grace(), self._on_late)
            timer.daemon = True
            timer.start()


def leave_now() -> None:
    """Without a checkpoint of the last steps: the loop did not reach the end of a step in time."""
    flush()
    os._exit(EXIT_FAILED)


def leave(code: int) -> NoReturn:
    """End this process without tearing anything down: torch's and gloo's threads may abort a normal exit, which also
    costs a second (torch-facts, section 4)."""
    flush()
    os._exit(code)


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue


def _nothing(number: int, frame: FrameType | None) -> None:
    """The pipe carries the news."""
