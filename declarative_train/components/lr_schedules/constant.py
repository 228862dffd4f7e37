"""The same lr all along."""

from __future__ import annotations

from typing import Literal

from declarative_train.components.component import LrSchedule
from declarative_train.components.lr_schedules.warmup import warmup_factor


class Constant(LrSchedule):
    """Keeps the optimizer's lr, after a warm-up if there is one."""

    type: Literal["constant"] = "constant"

    def factor(self, step: int, num_steps: int, num_warmup_steps: int) -> float:
        return warmup_factor(step, num_warmup_steps)
