"""Modules with few or no parameters: sum and product of inputs, pooling, patches of images, noise, and stochastic
depth.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import add, mul

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from declarative_train.components.expressions.lower import target_of


class AddModule(nn.Module):
    """Module that returns the sum of all inputs."""

    def forward(self, *inputs: Tensor) -> Tensor:
        return reduce(add, inputs)


class MultiplyModule(nn.Module):
    """Module that returns the product of all inputs, element by element."""

    def forward(self, *inputs: Tensor) -> Tensor:
        return reduce(mul, inputs)


class GlobalAveragePool(nn.Module):
    """Mean of each channel: (B, C, ...) to (B, C)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(2).mean(-1)


class GlobalMaxPoolModule(nn.Module):
    """Largest value of each channel: (B, C, ...) to (B, C)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(2).amax(-1)


class PatchEmbeddingModule(nn.Module):
    """Module that splits images (B, C, H, W) into T patches, row by row, and applies one linear map to each: (B, T,
    D).
    """

    def __init__(
        self, channels: int, embedding_dim: int, patch: tuple[int, ...], bias: bool, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.patch = patch
        self.weight = nn.Parameter(torch.empty(embedding_dim, channels, *patch, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(embedding_dim, dtype=dtype)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight, self.bias, stride=self.patch).flatten(2).transpose(1, 2)


class DropPathModule(nn.Module):
    """Stochastic depth: in training each sample is set to zero with probability p, and the other samples are
    multiplied by 1 / (1 - p).
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        keep = torch.rand((x.shape[0],) + (1,) * (x.dim() - 1), device=x.device) >= self.p
        return x * (keep.to(x.dtype) / (1 - self.p))


class EmbeddingNoiseModule(nn.Module):
    """Module that in training adds uniform noise, of at most alpha / sqrt(T * D), to vectors (B, T, D)."""

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.alpha == 0:
            return x
        size = self.alpha / (x.shape[1] * x.shape[2]) ** 0.5
        return torch.add(x, 2 * torch.rand_like(x) - 1, alpha=size)


class FunctionModule(nn.Module):
    """Module that applies a function of the expression language to its inputs."""

    def __init__(self, name: str, options: Mapping[str, object]) -> None:
        super().__init__()
        self.name, self.function, self.options = name, target_of(name), dict(options)

    def forward(self, *tensors: Tensor) -> Tensor:
        found: Tensor = self.function(*tensors, **self.options)
        return found

    def extra_repr(self) -> str:
        return ", ".join([self.name, *(f"{key}={value}" for key, value in self.options.items())])
