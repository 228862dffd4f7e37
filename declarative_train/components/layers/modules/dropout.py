"""Random removal of whole samples' contributions."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class DropPath(nn.Module):
    """In training, sets each sample to zero with probability p and scales the others by 1 / (1 - p)."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        keep = torch.rand((x.shape[0],) + (1,) * (x.dim() - 1), device=x.device) >= self.p
        return x * (keep.to(x.dtype) / (1 - self.p))
