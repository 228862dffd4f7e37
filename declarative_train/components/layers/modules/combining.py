"""Several tensors become one."""

from __future__ import annotations

from functools import reduce
from operator import add, mul

import torch
from torch import Tensor, nn


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
