"""SIGTERM while a command works -> an exception, so that it can be told; Python does the same for SIGINT by itself."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class TerminatedError(BaseException):
    """As KeyboardInterrupt: nobody who catches mistakes should catch it."""


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """SIGTERM raises TerminatedError in this process; a forked child it ends at once, as any other."""
    if signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    own = os.getpid()

    def terminate(number: int, frame: FrameType | None) -> None:
        if os.getpid() == own:
            raise TerminatedError
        forget()  # heard by a child that is just being forked
        os.kill(os.getpid(), number)

    def forget() -> None:
        if signal.getsignal(signal.SIGTERM) is terminate:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    is_main_thread = True
    try:
        signal.signal(signal.SIGTERM, terminate)
    except ValueError:  # only the main thread does
        is_main_thread = False
    if not is_main_thread:
        yield
        return
    os.register_at_fork(after_in_child=forget)
    try:
        yield
    finally:
        forget()
