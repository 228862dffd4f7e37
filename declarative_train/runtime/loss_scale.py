"""fp16: the factor that keeps small gradients above the smallest half-precision number.

As torch's GradScaler, but the factor stays on the device, and whether a step was finite comes from the global gradient
norm, which all ranks share: no rank can skip a step that another one takes.
"""

from __future__ import annotations

import torch

GROWTH_STEPS = 2000
START = 65536.0


class LossScale:
    def __init__(self, device: torch.device) -> None:
        self.factor = torch.tensor(START, device=device)
        self._good_steps = torch.zeros((), device=device)

    def update(self, finite: torch.Tensor) -> None:
        """After a step: halve when it was not finite, double after 2000 that were."""
        good = torch.where(finite, self._good_steps + 1, 0.0)
        grows = good >= GROWTH_STEPS
        growth = torch.where(grows, 2.0, 1.0)
        self.factor = self.factor * torch.where(finite, growth, 0.5)
        self._good_steps = torch.where(grows, 0.0, good)

    def state(self) -> dict[str, float]:
        """The host waits."""
        return {"factor": self.factor.item(), "good_steps": self._good_steps.item()}

    def load(self, state: dict[str, float]) -> None:
        self.factor.fill_(state["factor"])
        self._good_steps.fill_(state["good_steps"])
