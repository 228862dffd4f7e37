"""Report of stalls: which thread or loader process has been waiting for data, for which file, and since when.

A wait is reported after half a minute, and again after twice the time. A thread or loader process that itself waits
for another one passes on what that one does; only the training loop's own wait is reported, and ends in an error.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

from declarative_train.data.spec import DataError
from declarative_train.files.file_activity import FileActivity, is_loader, note
from declarative_train.files.open_files import format_path

LOOK_S = 2.0  # between two checks of a wait
REPORT_S = 30.0
CLOSE_S = 10.0  # for a thread to finish its work when its results are no longer needed
OURS = "dtrain-"  # prefix of the names of threads that make data


def _on_stderr(message: str) -> None:
    print(f"dtrain: {message}", file=sys.stderr, flush=True)


class Patience:
    """Limits of this process for waits: how long it waits for data, and where it reports waits."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.report: Callable[[str], None] = _on_stderr
        self.limit_s = 600.0


PATIENCE = Patience()


class Wait:
    """Wait for data. `of` returns what the awaited thread or process does; None: unknown."""

    def __init__(self, of: Callable[[], FileActivity | None]) -> None:
        self._of = of
        self._begun = time.monotonic()
        self._report_s = REPORT_S

    def look(self) -> None:
        """Check the wait; call it from time to time. Raises DataError if there was no progress for too long."""
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
