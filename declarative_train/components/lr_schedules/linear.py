"""A straight line down to the end of the run."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from declarative_train.components.component import LrSchedule
from declarative_train.components.lr_schedules.warmup import progress, warmup_factor


class Linear(LrSchedule):
    """Falls in a straight line to `min_factor` at the end of the run."""

    type: Literal["linear"] = "linear"
    min_factor: float = Field(0.0, ge=0, le=1)
    """What is left of the lr at the end, as a part of it."""

    def factor(self, step: int, num_steps: int, num_warmup_steps: int) -> float:
        done = progress(step, num_steps, num_warmup_steps)
        return warmup_factor(step, num_warmup_steps) * (1 + (self.min_factor - 1) * done)
