"""One over the square root of the step."""

from __future__ import annotations

from math import sqrt
from typing import Literal

from declarative_train.components.component import LrSchedule
from declarative_train.components.lr_schedules.warmup import warmup_factor


class InverseSqrt(LrSchedule):
    """Falls as one over the square root of the step, from 1 at the end of the warm-up.

    Vaswani et al., "Attention is all you need", section 5.3, https://arxiv.org/abs/1706.03762, divided by its peak, so
    that the optimizer's lr is the highest one.
    """

    type: Literal["inverse_sqrt"] = "inverse_sqrt"

    def factor(self, step: int, num_steps: int, num_warmup_steps: int) -> float:
        return warmup_factor(step, num_warmup_steps) * min(1.0, sqrt((num_warmup_steps + 1) / (step + 1)))
