"""Signals that end a command. They raise an exception, as SIGINT does in Python, so that the command can report
them."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# Schedulers send these before they stop a job (run/signals.py). SIGHUP is left out: it ends a command at once.
SIGNALS = () if sys.platform == "win32" else (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
AGAIN_S = 1.0


class TerminatedError(BaseException):
    """Request to terminate. Like KeyboardInterrupt, it is not an Exception, so code that handles errors does not catch
    it."""

    def __init__(self, number: int) -> None:
        self.number = number


@contextmanager
def signals_raise() -> Iterator[None]:
    """Raise TerminatedError in the code of the `with` block when a signal arrives that ends a command; for SIGINT,
    raise KeyboardInterrupt. A forked child handles signals as before the block.

    The interrupted code may lose the exception. So a signal other than SIGINT is sent again until the block ends or a
    run handles it. An exception that leaves the block after a signal is replaced by the signal's exception."""
    is_main_thread = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in (*SIGNALS, signal.SIGINT) if is_main_thread}
    usual = (signal.SIG_DFL, signal.default_int_handler)
    taken = [number for number, handler in before.items() if handler in usual]
    own = os.getpid()
    repeats: list[threading.Timer] = []
    received: list[int] = []

    def terminate(number: int, frame: FrameType | None) -> None:
        if os.getpid() != own:
            forget()  # this is a child that has just been forked
            os.kill(os.getpid(), number)
            return
        received.append(number)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        repeats.append(threading.Timer(AGAIN_S, os.kill, (own, number)))
        repeats[-1].daemon = True
        repeats[-1].start()
        raise TerminatedError(number)

    def forget() -> None:
        for number in taken:
            if signal.getsignal(number) is terminate:
                signal.signal(number, before[number])

    for number in taken:
        signal.signal(number, terminate)
    if taken:
        os.register_at_fork(after_in_child=forget)
    try:
        yield
    except Exception:
        if received:
            raise (KeyboardInterrupt if received[0] == signal.SIGINT else TerminatedError(received[0])) from None
        raise
    finally:
        for repeat in repeats:
            repeat.cancel()
        forget()
