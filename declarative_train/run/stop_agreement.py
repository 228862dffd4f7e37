"""Agreement of all ranks to stop a run early, after the same step.

Each rank has a vote (a number) for each reason to stop. The ranks sum their votes together with the losses, at each
logging step and about once a second. They also sum their step times, from which all ranks compute the same next step at
which they vote. A single process checks after every step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Literal

PERIOD_S = 1.0
MOST_STEPS = 1000

Reason = Literal["signal", "time"]
Exchange = Callable[[Sequence[float]], Sequence[float]]  # numbers of this rank -> their sums over all ranks


class StopAgreement:
    """Decision to stop, the same on all ranks. `asked`: function that returns whether a signal asked this rank to
    stop."""

    def __init__(self, num_ranks: int, asked: Callable[[], bool], max_time_s: float | None) -> None:
        self._num_ranks = num_ranks
        self._asked = asked
        self._max_time_s = max_time_s
        self._begun_s = self._looked_s = time.monotonic()
        self._distance = 1
        self._since = 0
        self.reason: Reason | None = None

    def check(self, exchange: Exchange, *, is_due: bool) -> Reason | None:
        """Return the reason to stop after this step, or None. All ranks must call this after each step, and all get the
        same result. Several ranks exchange their reasons only if `is_due`, or if enough steps have passed since the
        last exchange.

        `exchange`: function that sums numbers over the ranks, together with the losses. `is_due`: the run logs after
        this step, so it sums the losses anyway.
        """
        if self._num_ranks == 1:
            if self._asked() or self._max_time_s is not None:
                self.reason = self._mine(time.monotonic())
            return self.reason
        self._since += 1
        if is_due or self._since >= self._distance:
            self.reason = self._agree(exchange)
        return self.reason

    def _mine(self, now_s: float) -> Reason | None:
        if self._asked():
            return "signal"
        return "time" if self._max_time_s is not None and now_s - self._begun_s >= self._max_time_s else None

    def _agree(self, exchange: Exchange) -> Reason | None:
        now_s = time.monotonic()
        reason = self._mine(now_s)
        asked, late, seconds = exchange([float(reason == "signal"), float(reason == "time"), now_s - self._looked_s])
        step_s = max(seconds / self._num_ranks / self._since, 1e-6)
        self._distance = int(min(max(PERIOD_S / step_s, 1), MOST_STEPS))
        self._since, self._looked_s = 0, now_s
        if asked:
            return "signal"
        return "time" if late else None
