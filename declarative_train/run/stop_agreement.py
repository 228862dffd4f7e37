"""Agreement of all ranks to stop after the same step, before the last.

A single process checks after every step. Several ranks all-reduce a small vector about once a second. The same
reduction measures how many steps that is, so all ranks check after the same steps and the other steps cost nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

import torch

from declarative_train.components.component import Collective
from declarative_train.engine.collectives import Ranks

PERIOD_S = 1.0
MOST_STEPS = 1000

Reason = Literal["signal", "time"]


class StopAgreement:
    """Decision to stop, which is the same on all ranks. `asked` returns whether this rank received a signal to stop."""

    def __init__(self, ranks: Collective, asked: Callable[[], bool], max_time_s: float | None) -> None:
        self._ranks = ranks if isinstance(ranks, Ranks) else None
        self._asked = asked
        self._max_time_s = max_time_s
        self._begun_s = self._looked_s = time.monotonic()
        self._distance = 1
        self._since = 0
        self.reason: Reason | None = None

    def check(self) -> Reason | None:
        """Return why to stop after this step, or None. All ranks call it after each step and get the same answer."""
        if self._ranks is None:
            if self._asked() or self._max_time_s is not None:
                self.reason = self._mine(time.monotonic())
            return self.reason
        self._since += 1
        if self._since >= self._distance:
            self.reason = self._agree(self._ranks)
        return self.reason

    def _mine(self, now_s: float) -> Reason | None:
        if self._asked():
            return "signal"
        return "time" if self._max_time_s is not None and now_s - self._begun_s >= self._max_time_s else None

    def _agree(self, ranks: Ranks) -> Reason | None:
        now_s = time.monotonic()
        reason = self._mine(now_s)
        votes = [float(reason == "signal"), float(reason == "time"), now_s - self._looked_s]
        mine = torch.tensor(votes, dtype=torch.float64)  # on the host, by gloo: no wait for the GPU
        asked, late, seconds = ranks.sum(mine).tolist()
        step_s = max(seconds / ranks.size / self._since, 1e-6)
        self._distance = int(min(max(PERIOD_S / step_s, 1), MOST_STEPS))
        self._since, self._looked_s = 0, now_s
        if asked:
            return "signal"
        return "time" if late else None
