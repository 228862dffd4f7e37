"""Learning-rate schedules without durations: constant, falling until the end of the run, or rising and then falling."""

from __future__ import annotations

from math import cos, pi, sqrt
from typing import Literal

from pydantic import Field

from declarative_train.components.component import LrSchedule


def warmup_factor(step: int, num_warmup_steps: int) -> float:
    """Return the factor of the learning rate in the warm-up. It rises linearly from 1 / (num_warmup_steps + 1) at step
    0 to 1 at step `num_warmup_steps`, and stays 1. It does not start at 0, because such a step would train nothing."""
    return min(1.0, (step + 1) / (num_warmup_steps + 1))


def progress(step: int, num_steps: int, num_warmup_steps: int) -> float:
    """Return the fraction of the steps after the warm-up that is over before `step`. It is 0 in the first step after
    the warm-up, and a little less than 1 in the last step of the run."""
    return min(1.0, max(0.0, (step - num_warmup_steps) / max(1, num_steps - num_warmup_steps)))


class ConstantLr(LrSchedule):
    """Constant learning rate, after a warm-up if there is one."""

    type: Literal["constant"] = "constant"

    def factor(self, step: int, num_steps: int, num_warmup_steps: int) -> float:
        return warmup_factor(step, num_warmup_steps)


class LinearLr(LrSchedule):
    """Learning rate that falls linearly to `min_factor` times the optimizer's lr at the end of the run."""

    type: Literal["linear"] = "linear"
    min_factor: float = Field(0.0, ge=0, le=1)
    """Factor at the end of the run."""

    def factor(self, step: int, num_steps: int, num_warmup_steps: int) -> float:
        done = progress(step, num_steps, num_warmup_steps)
        return warmup_factor(step, num_warmup_steps) * (1 + (self.min_factor - 1) * done)


class Cosine(LrSchedule):
    """Learning rate that falls along half a cosine to `min_factor` times the optimizer's lr at the end of the run.

    Loshchilov and Hutter, "SGDR", https://arxiv.org/abs/1608.03983, without restarts.
    """

    type: Literal["cosine"] = "cosine"
    min_factor: float = Field(0.0, ge=0, le=1)
    """Factor at the end of the run."""

    def factor(self, step: int, num_steps: int, num_warmup_steps: int) -> float:
        falling = (1 + cos(pi * progress(step, num_steps, num_warmup_steps))) / 2
        return warmup_factor(step, num_warmup_steps) * (self.min_factor + (1 - self.min_factor) * falling)


class Polynomial(LrSchedule):
    """Learning rate that falls to `min_factor` times the optimizer's lr at the end of the run. The factor is
    `min_factor` + (1 - `min_factor`) * r ** `power`, where r is the remaining fraction of the steps after the warm-up.
    """

    type: Literal["polynomial"] = "polynomial"
    power: float = Field(2.0, gt=0)
    """1 is a straight line; larger values fall faster at first."""
    min_factor: float = Field(0.0, ge=0, le=1)
    """Factor at the end of the run."""

    def factor(self, step: int, num_steps: int, num_warmup_steps: int) -> float:
        left = 1 - progress(step, num_steps, num_warmup_steps)
        return warmup_factor(step, num_warmup_steps) * (
            self.min_factor + (1 - self.min_factor) * float(left**self.power)
        )


class InverseSqrt(LrSchedule):
    """Learning rate that falls as 1 / sqrt(step), from the optimizer's lr at the end of the warm-up.

    Vaswani et al., "Attention is all you need", section 5.3, https://arxiv.org/abs/1706.03762, scaled so that the
    maximum is the optimizer's lr.
    """

    type: Literal["inverse_sqrt"] = "inverse_sqrt"

    def factor(self, step: int, num_steps: int, num_warmup_steps: int) -> float:
        return warmup_factor(step, num_warmup_steps) * min(1.0, sqrt((num_warmup_steps + 1) / (step + 1)))


class OneCycle(LrSchedule):
    """Learning rate that rises from `start_factor` times the optimizer's lr to this lr, and then falls to
    `final_factor` times it, like torch's `OneCycleLR`.

    `warmup` is the length of the rise, by default 30% of the run. Smith and Topin, "Super-Convergence",
    https://arxiv.org/abs/1708.07120.
    """

    type: Literal["one_cycle"] = "one_cycle"
    start_factor: float = Field(0.04, gt=0, le=1)
    """Factor of the first step (torch's 1 / `div_factor`)."""
    final_factor: float = Field(4e-6, ge=0, le=1)
    """Factor of the last step (torch's 1 / `div_factor` / `final_div_factor`)."""
    shape: Literal["cosine", "linear"] = "cosine"
    """Shape of the rise and the fall."""

    def factor(self, step: int, num_steps: int, num_warmup_steps: int) -> float:
        peak = (num_warmup_steps or 0.3 * num_steps) - 1  # as in torch: the peak is the last step of the rise
        if step <= peak:
            return self._between(self.start_factor, 1.0, step / peak if peak > 0 else 1.0)
        fall = num_steps - 1 - peak
        return self._between(1.0, self.final_factor, min(1.0, (step - peak) / fall) if fall > 0 else 1.0)

    def _between(self, first: float, last: float, done: float) -> float:
        if self.shape == "linear":
            return first + (last - first) * done
        return last + (first - last) / 2 * (1 + cos(pi * done))
