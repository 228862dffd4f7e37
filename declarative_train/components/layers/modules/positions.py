"""Positions of a sequence, and a token of its own."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LearnedPositions(nn.Module):
    """x (B, ..., T, D) plus a learned vector for each of the first T positions."""

    def __init__(self, max_length: int, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(max_length, width, dtype=dtype))

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        return x + self.weight[start : start + x.shape[-2]]


class SinusoidalPositions(nn.Module):
    """x (B, ..., T, D) plus sines (first half of D) and cosines (second half) of the position."""

    def __init__(self, base: float) -> None:
        super().__init__()
        self.base = base

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        T, D = x.shape[-2:]
        dtype = torch.promote_types(x.dtype, torch.float32)
        frequencies = self.base ** (torch.arange(0, D, 2, dtype=dtype, device=x.device) / -D)
        angles = torch.outer(torch.arange(start, start + T, dtype=dtype, device=x.device), frequencies)
        return x + torch.cat([angles.sin(), angles.cos()], dim=-1).to(x.dtype)


class ClassToken(nn.Module):
    """(B, ..., T, D) to (B, ..., T + 1, D): a learned token stands first."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.empty(width, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.token.to(x.dtype).expand(*x.shape[:-2], 1, -1), x], dim=-2)


class OwnTensor(nn.Module):
    """x (B, ...) to (B, *shape): the learned tensor for each sample, copied: a view would outlive what a sharded unit
    gathers."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight.expand(x.shape[0], *self.weight.shape).clone()


class LayerScale(nn.Module):
    """x (B, ..., D) times a learned number per element of the last dimension."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class SequencePool(nn.Module):
    """x (B, ..., T, D), mask (B, ..., T) bool or None -> (B, ..., D). A sequence without any position gives 0."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.mode = mode

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None:
            if self.mode == "mean":
                return x.mean(-2)
            return x.amax(-2) if self.mode == "max" else x[..., 0 if self.mode == "first" else -1, :]
        keep = mask.unsqueeze(-1)
        if self.mode == "mean":
            return (x * keep).sum(-2) / keep.sum(-2).clamp(min=1).to(x.dtype)
        if self.mode == "max":
            highest = x.masked_fill(~keep, -torch.inf).amax(-2)
            return highest.masked_fill(~keep.any(-2), 0)
        places = torch.arange(x.shape[-2], device=x.device)
        one = torch.where(mask, -places if self.mode == "first" else places, -x.shape[-2]).argmax(-1)
        chosen = x.take_along_dim(one[..., None, None], dim=-2).squeeze(-2)
        return chosen * keep.any(-2)
