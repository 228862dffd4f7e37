"""Torch modules of the pack."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class SineModule(nn.Module):
    """sin(frequency * x)."""

    def __init__(self, frequency: float) -> None:
        super().__init__()
        self.frequency = frequency

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.frequency * x)


def cosine_distance(input: Tensor, target: Tensor, reduction: str) -> Tensor:
    """Return 1 - cos(input - target)."""
    each = 1 - torch.cos(input - target)
    return each.sum() if reduction == "sum" else each
