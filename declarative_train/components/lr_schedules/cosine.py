"""Half a cosine down to the end of the run."""

from __future__ import annotations

from math import cos, pi
from typing import Literal

from pydantic import Field

from declarative_train.components.component import LrSchedule
from declarative_train.components.lr_schedules.warmup import progress, warmup_factor


class Cosine(LrSchedule):
    """Falls along half a cosine to `min_factor` at the end of the run.

    Without restarts: Loshchilov and Hutter, "SGDR", https://arxiv.org/abs/1608.03983.
    """

    type: Literal["cosine"] = "cosine"
    min_factor: float = Field(0.0, ge=0, le=1)
    """What is left of the lr at the end, as a part of it."""

    def factor(self, step: int, num_steps: int, num_warmup_steps: int) -> float:
        falling = (1 + cos(pi * progress(step, num_steps, num_warmup_steps))) / 2
        return warmup_factor(step, num_warmup_steps) * (self.min_factor + (1 - self.min_factor) * falling)
