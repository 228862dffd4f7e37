"""The calls of an expression that torch has no single function for; `x` is (B, ...), a shape begins with "B"."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

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


def reshape(x: torch.Tensor, shape: tuple[Any, ...]) -> torch.Tensor:
    """A -1 follows from the sizes of a sample: of a batch without rows torch would not know it."""
    sizes, known = shape[1:], math.prod(size for size in shape[1:] if size != -1)
    return x.reshape(x.shape[0], *(x.shape[1:].numel() // known if size == -1 else size for size in sizes))


def expand(x: torch.Tensor, size: tuple[Any, ...]) -> torch.Tensor:
    return x.expand(x.shape[0], *size[1:])


def flatten(x: torch.Tensor, start_dim: int, end_dim: int) -> torch.Tensor:
    """All but the batch of (B) is one number: (B, 1)."""
    import torch

    is_number = x.ndim == 1 and (start_dim, end_dim) == (1, -1)
    return x.unsqueeze(1) if is_number else torch.flatten(x, start_dim, end_dim)


def squeeze(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Raises ValueError for a dimension of another size than 1, which torch leaves as it is."""
    import torch

    if x.shape[dim] != 1:
        raise ValueError(f"`squeeze` drops a dimension of size 1, dimension {dim} has size {x.shape[dim]}")
    return torch.squeeze(x, dim)


def concat(*tensors: torch.Tensor, dim: int = -1) -> torch.Tensor:
    import torch

    return torch.cat(tensors, dim)


def stack(*tensors: torch.Tensor, dim: int) -> torch.Tensor:
    import torch

    return torch.stack(tensors, dim)


def one_hot(x: torch.Tensor, num_classes: int) -> torch.Tensor:
    """In the float type that the model computes in. A number outside the classes gives zeros only: that none occurs is
    held where values are known, since a GPU would have to be waited for."""
    import torch

    classes = torch.arange(num_classes, device=x.device)
    return (x.unsqueeze(-1) == classes).to(torch.get_default_dtype())


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
