"""Up to the optimizer's lr, then far below where it began."""

from __future__ import annotations

from math import cos, pi
from typing import Literal

from pydantic import Field

from declarative_train.components.component import LrSchedule


class OneCycle(LrSchedule):
    """Rises to the optimizer's lr and falls far below where it began, as torch's `OneCycleLR`.

    `warmup` is the rise; without it the rise takes 30% of the run, since a cycle without one is not a cycle.
    Smith and Topin, "Super-Convergence", https://arxiv.org/abs/1708.07120.
    """

    type: Literal["one_cycle"] = "one_cycle"
    start_factor: float = Field(0.04, gt=0, le=1)
    """The first step's part of the lr (torch's 1 / `div_factor`)."""
    final_factor: float = Field(4e-6, ge=0, le=1)
    """The last step's part of the lr (torch's 1 / `div_factor` / `final_div_factor`)."""
    shape: Literal["cosine", "linear"] = "cosine"
    """How it goes from one to the other."""

    def factor(self, step: int, num_steps: int, num_warmup_steps: int) -> float:
        peak = (num_warmup_steps or 0.3 * num_steps) - 1  # as torch: the step before the rise has ended
        if step <= peak:
            return self._between(self.start_factor, 1.0, step / peak if peak > 0 else 1.0)
        fall = num_steps - 1 - peak
        return self._between(1.0, self.final_factor, min(1.0, (step - peak) / fall) if fall > 0 else 1.0)

    def _between(self, first: float, last: float, done: float) -> float:
        if self.shape == "linear":
            return first + (last - first) * done
        return last + (first - last) / 2 * (1 + cos(pi * done))
