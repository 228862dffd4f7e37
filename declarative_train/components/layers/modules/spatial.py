"""Images and volumes: reductions to one value per channel, and images as sequences."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class GlobalAveragePool(nn.Module):
    """(B, C, ...) to (B, C)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(2).mean(-1)


class GlobalMaxPool(nn.Module):
    """(B, C, ...) to (B, C)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(2).amax(-1)


class PatchEmbedding(nn.Module):
    """(B, C, H, W) to (B, T, D): each patch through one linear map, row by row."""

    def __init__(
        self, channels: int, embedding_dim: int, patch: tuple[int, ...], bias: bool, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.patch = patch
        self.weight = nn.Parameter(torch.empty(embedding_dim, channels, *patch, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(embedding_dim, dtype=dtype)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight, self.bias, stride=self.patch).flatten(2).transpose(1, 2)
