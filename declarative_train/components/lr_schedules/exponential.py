"""A constant ratio from one duration to the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from pydantic import Field

from declarative_train.components.component import LrSchedule
from declarative_train.components.lr_schedules.duration_field import DurationText, in_steps, num_steps_of
from declarative_train.components.lr_schedules.warmup import warmup_factor
from declarative_train.terms.duration import Duration, parse_duration


class Exponential(LrSchedule):
    """Falls a little at every step, by `gamma` over each `every`, counted from the end of the warm-up."""

    type: Literal["exponential"] = "exponential"
    gamma: float = Field(0.95, gt=0, le=1)
    """The factor of one `every`."""
    every: DurationText = "1 epoch"
    """How long one factor `gamma` takes: `1 epoch`, `1000 steps`."""

    def factor(self, step: int, num_steps: int, num_warmup_steps: int) -> float:
        turns = max(0, step - num_warmup_steps) / num_steps_of(self.every)
        return warmup_factor(step, num_warmup_steps) * float(self.gamma**turns)

    def resolved(self, to_steps: Callable[[Duration], int]) -> Exponential:
        return self.model_copy(update={"every": in_steps(to_steps(parse_duration(self.every)))})
