"""The same lr all along, which is the default; and where a run stands: step numbers -> the part that is done."""

from __future__ import annotations

from typing import Literal

from declarative_train.components.component import LrSchedule


def warmup_factor(step: int, num_warmup_steps: int) -> float:
    """Rises in equal parts to 1 at step `num_warmup_steps`, which is the first after the warm-up.

    The first step is not at 0, which would waste it: torch's `LinearLR` from 1 / (num_warmup_steps + 1).
    """
    return min(1.0, (step + 1) / (num_warmup_steps + 1))


def progress(step: int, num_steps: int, num_warmup_steps: int) -> float:
    """0 at the first step after the warm-up, 1 at step `num_steps`: one after the last, as torch's `T_max` counts."""
    return min(1.0, max(0.0, (step - num_warmup_steps) / max(1, num_steps - num_warmup_steps)))


class Constant(LrSchedule):
    """Keeps the optimizer's lr, after a warm-up if there is one."""

    type: Literal["constant"] = "constant"

    def factor(self, step: int, num_steps: int, num_warmup_steps: int) -> float:
        return warmup_factor(step, num_warmup_steps)
