"""The calls of an expression that torch has no single function for; `x` is (B, ...), sizes are those of one sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def reshape(x: torch.Tensor, sizes: tuple[int, ...]) -> torch.Tensor:
    return x.reshape(x.shape[0], *sizes)


def expand(x: torch.Tensor, sizes: tuple[int, ...]) -> torch.Tensor:
    return x.expand(x.shape[0], *sizes)


def permute(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    """`[2, 1]` makes (B, T, C) of (B, C, T)."""
    return x.permute(0, *dims)


def concat(*tensors: torch.Tensor, dim: int = -1) -> torch.Tensor:
    import torch

    return torch.cat(tensors, dim)


def stack(*tensors: torch.Tensor, dim: int) -> torch.Tensor:
    import torch

    return torch.stack(tensors, dim)


def gather(x: torch.Tensor, index: torch.Tensor, dim: int) -> torch.Tensor:
    """`x` at `index` along `dim`, the other dimensions broadcast."""
    import torch

    return torch.take_along_dim(x, index, dim)


def detach(x: torch.Tensor) -> torch.Tensor:
    return x.detach()


def to_float(x: torch.Tensor) -> torch.Tensor:
    """The float type that the model computes in (fp64 runs set torch's default)."""
    import torch

    return x.to(torch.get_default_dtype())


def to_int(x: torch.Tensor) -> torch.Tensor:
    return x.long()


def to_bool(x: torch.Tensor) -> torch.Tensor:
    return x.bool()
