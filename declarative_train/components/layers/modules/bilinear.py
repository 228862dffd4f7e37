"""A bilinear form that takes what autocast hands it."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class Bilinear(nn.Bilinear):
    """x (B, ..., D), y (B, ..., E) -> (B, ..., out). Autocast does not know `bilinear` on every device, so inputs that
    it lowered come back to the dtype of the weight."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.bilinear(x.to(self.weight.dtype), y.to(self.weight.dtype), self.weight, self.bias)
