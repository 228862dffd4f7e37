"""Warm-up, stable, decay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, cos, pi, sqrt
from typing import Literal

from pydantic import Field

from declarative_train.components.component import LrSchedule, Misfit
from declarative_train.components.lr_schedules.duration_field import DurationText, in_steps, num_steps_of
from declarative_train.components.lr_schedules.warmup import warmup_factor
from declarative_train.terms.amounts import counted
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

    def misfits(self, exact_steps: Callable[[Duration], float], num_steps: int, warmup: float) -> Sequence[Misfit]:
        decay = exact_steps(parse_duration(self.decay))
        if warmup + decay <= num_steps:
            return ()
        left = num_steps - warmup
        run = f"a run of {counted(num_steps, 'step')}"
        room = f"what the warm-up leaves of {run}" if warmup else run
        message = f"a decay of {counted(ceil(decay), 'step')} is longer than {room}"
        way_out = f"the longest is `{in_steps(int(left))}`, or `{int(100 * left / num_steps)}%`"
        return (Misfit(message, field="decay", help=way_out),)
