"""Changes of shape that leave the batch alone; nothing is computed."""

from __future__ import annotations

from torch import Tensor, nn


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
