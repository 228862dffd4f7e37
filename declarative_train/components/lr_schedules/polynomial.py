"""A power of what is left of the run."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from declarative_train.components.component import LrSchedule
from declarative_train.components.lr_schedules.warmup import progress, warmup_factor


class Polynomial(LrSchedule):
    """Falls as a power of what is left of the run, to `min_factor` at its end."""

    type: Literal["polynomial"] = "polynomial"
    power: float = Field(2.0, gt=0)
    """1 is a straight line; more falls faster at first."""
    min_factor: float = Field(0.0, ge=0, le=1)
    """What is left of the lr at the end, as a part of it."""

    def factor(self, step: int, num_steps: int, num_warmup_steps: int) -> float:
        left = 1 - progress(step, num_steps, num_warmup_steps)
        return warmup_factor(step, num_warmup_steps) * (
            self.min_factor + (1 - self.min_factor) * float(left**self.power)
        )
