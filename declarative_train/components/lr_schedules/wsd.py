"""Warm-up, stable, decay."""

from __future__ import annotations

from collections.abc import Callable
from math import cos, pi, sqrt
from typing import Literal

from pydantic import Field

from declarative_train.components.component import LrSchedule
from declarative_train.components.lr_schedules.duration_field import DurationText, in_steps, num_steps_of
from declarative_train.components.lr_schedules.warmup import warmup_factor
from declarative_train.terms.duration import Duration, parse_duration


class Wsd(LrSchedule):
    """Warm-up, stable, decay: keeps the lr, then falls to `min_factor` over the last part of the run.

    Hu et al., "MiniCPM", section 4, https://arxiv.org/abs/2404.06395; the square-root shape: Hägele et al., "Scaling
    laws beyond fixed training durations", https://arxiv.org/abs/2405.18392.
    """

    type: Literal["wsd"] = "wsd"
    decay: DurationText = "20%"
    """How long before the end of the run it begins to fall."""
    shape: Literal["linear", "cosine", "sqrt"] = "linear"
    """How it falls; `sqrt` is 1 - sqrt(part of the decay that is done)."""
    min_factor: float = Field(0.0, ge=0, le=1)
    """What is left of the lr at the end, as a part of it."""

    def factor(self, step: int, num_steps: int, num_warmup_steps: int) -> float:
        decay = num_steps_of(self.decay)
        done = min(1.0, max(0.0, (step - (num_steps - decay)) / decay))
        left = {"linear": 1 - done, "cosine": (1 + cos(pi * done)) / 2, "sqrt": 1 - sqrt(done)}[self.shape]
        return warmup_factor(step, num_warmup_steps) * (self.min_factor + (1 - self.min_factor) * left)

    def resolved(self, to_steps: Callable[[Duration], int]) -> Wsd:
        return self.model_copy(update={"decay": in_steps(to_steps(parse_duration(self.decay)))})
