"""Retries of a save, for an object store that cannot be reached for a while or refuses requests."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from declarative_train.engine.failures import CheckpointFailure, first_line, limit_s

Result = TypeVar("Result")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
LOOK_S = 0.02
LATE_S = 5.0  # a store that has not answered for so long may be unreachable
FINAL = (FileNotFoundError, PermissionError, CheckpointFailure)  # a missing bucket, refused credentials


class Retry:
    """Callable that runs the operations of one save, and repeats those that fail. `limit_s`: time limit for
    repetitions, in seconds from the first failure of the save (0: nothing is repeated). `reason`: why the current
    operation failed last, or None if it has not failed; other threads may read it."""

    def __init__(self, limit_s: float) -> None:
        self.reason: str | None = None
        self._begun_s: float | None = None  # when the current attempt began
        self._limit_s = limit_s
        self._deadline_s: float | None = None

    @property
    def is_stuck(self) -> bool:
        """Return whether the current operation has failed at least once, or its current attempt has taken longer than
        `LATE_S`."""
        begun_s = self._begun_s
        return self.reason is not None or (begun_s is not None and time.monotonic() - begun_s > LATE_S)

    def __call__(self, operation: Callable[[], Result]) -> Result:
        """Run `operation` until it succeeds, and return its result. When the time limit is over, raise the operation's
        last exception. Exceptions of the classes `FINAL`, such as refused credentials, are raised at once."""
        pause_s = FIRST_PAUSE_S
        while True:
            self._begun_s = time.monotonic()
            try:
                result = operation()
            except FINAL:
                raise
            except Exception as error:  # the client of each object store has its own exceptions
                now_s = time.monotonic()
                if self._deadline_s is None:
                    self._deadline_s = now_s + self._limit_s
                if now_s >= self._deadline_s:
                    raise
                self.reason = first_line(error)
                # random, so that ranks that failed together do not try again together
                time.sleep(min(pause_s * random.uniform(0.5, 1.5), max(self._deadline_s - now_s, 0.0)))
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            else:
                self.reason = self._begun_s = None
                return result


def retry_on(is_local: bool) -> Retry:
    """Return a new Retry, which repeats failed operations of one save. On a local disk (`is_local`) it repeats
    nothing."""
    return Retry(0.0 if is_local else limit_s("DTRAIN_STORE_S"))
