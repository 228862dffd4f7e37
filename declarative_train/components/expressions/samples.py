"""The calls of an expression that torch has no single function for; `x` is (B, ...), sizes are those of one sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def vector(values: tuple[float, ...], like: torch.Tensor) -> torch.Tensor:
    """The numbers along the channel dimension of `like`, (B, ..., D) or (B, C, H, W, ...), in its dtype where that
    holds them. Raises ValueError where they are not as many as there are channels (or one)."""
    import torch

    dim = 1 if like.ndim >= 4 else -1
    if like.ndim < 2:
        raise ValueError("a tensor (B) has no channel dimension")
    found, wanted = len(values), like.shape[dim]
    if wanted not in (found, 1):
        which = "dimension 1" if dim == 1 else "the last dimension"
        raise ValueError(f"a vector of {found} lies along {which}, whose size is {wanted}")
    whole = all(isinstance(value, int) for value in values)
    is_kept = like.is_floating_point() or (whole and like.dtype != torch.bool)
    dtype = like.dtype if is_kept else torch.int64 if whole else torch.get_default_dtype()
    made = torch.tensor(values, dtype=dtype).to(like.device, non_blocking=True)
    return made.reshape(-1, *(1 for _ in range(like.ndim - 2))) if dim == 1 else made


def maximum(x: torch.Tensor | float, y: torch.Tensor | float) -> torch.Tensor:
    """The larger of the two; of a tensor and a number `clamp`, whose gradient passes where they are equal."""
    import torch

    if not isinstance(x, torch.Tensor):
        return torch.clamp(y, min=x)  # type: ignore[arg-type]
    return torch.maximum(x, y) if isinstance(y, torch.Tensor) else torch.clamp(x, min=y)


def minimum(x: torch.Tensor | float, y: torch.Tensor | float) -> torch.Tensor:
    """The smaller of the two; see `maximum`."""
    import torch

    if not isinstance(x, torch.Tensor):
        return torch.clamp(y, max=x)  # type: ignore[arg-type]
    return torch.minimum(x, y) if isinstance(y, torch.Tensor) else torch.clamp(x, max=y)


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
