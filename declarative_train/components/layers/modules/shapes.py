"""What joins, reshapes and reduces tensors, images as sequences, and samples left out by chance."""

from __future__ import annotations

from functools import reduce
from operator import add, mul

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Reshape(nn.Module):
    """(B, ...) to (B, *shape)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], *self.shape)


class Permute(nn.Module):
    """Dimensions in another order; `dims` begins with 0, the batch."""

    def __init__(self, dims: tuple[int, ...]) -> None:
        super().__init__()
        self.dims = dims

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(self.dims)


class Squeeze(nn.Module):
    """Drops a dimension of size 1."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return x.squeeze(self.dim)


class Unsqueeze(nn.Module):
    """Inserts a dimension of size 1."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return x.unsqueeze(self.dim)


class Add(nn.Module):
    """The sum of all inputs."""

    def forward(self, *inputs: Tensor) -> Tensor:
        return reduce(add, inputs)


class Multiply(nn.Module):
    """The product of all inputs."""

    def forward(self, *inputs: Tensor) -> Tensor:
        return reduce(mul, inputs)


class Concat(nn.Module):
    """The inputs one after the other along a dimension."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, *inputs: Tensor) -> Tensor:
        return torch.cat(inputs, dim=self.dim)


class Stack(nn.Module):
    """The inputs side by side along a new dimension."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, *inputs: Tensor) -> Tensor:
        return torch.stack(inputs, dim=self.dim)


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
