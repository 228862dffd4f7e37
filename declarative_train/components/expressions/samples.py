"""Functions of expressions for which torch has no single function. `x` is a tensor (B, ...). The first entry of an
argument `shape` is the text "B", which stands for the size of the batch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def vector(values: tuple[float, ...], like: torch.Tensor) -> torch.Tensor:
    """Return the numbers `values`, one for each channel, as a tensor that broadcasts with `like`. Channels are
    dimension 1 of (B, C, H, W, ...), and the last dimension of a tensor with at most three dimensions.

    The dtype is that of `like` if it can represent the numbers. Raises ValueError if `like` is (B,), or if it has
    neither one channel nor a channel for each number."""
    import torch

    dim = 1 if like.ndim >= 4 else -1
    if like.ndim < 2:
        raise ValueError("a tensor (B) has no channel dimension")
    found, wanted = len(values), like.shape[dim]
    if wanted not in (found, 1):
        which = "dimension 1" if dim == 1 else "the last dimension"
        raise ValueError(f"a vector of {found} is along {which}, whose size is {wanted}")
    whole = all(isinstance(value, int) for value in values)
    is_kept = like.is_floating_point() or (whole and like.dtype != torch.bool)
    dtype = like.dtype if is_kept else torch.int64 if whole else torch.get_default_dtype()
    made = torch.tensor(values, dtype=dtype).to(like.device, non_blocking=True)
    return made.reshape(-1, *(1 for _ in range(like.ndim - 2))) if dim == 1 else made


def maximum(x: torch.Tensor | float, y: torch.Tensor | float) -> torch.Tensor:
    """Return the element-wise maximum. With a number as one operand, the gradient is 1 where both operands are equal.
    With two tensors it is 1/2 for each, as torch defines it."""
    import torch

    if not isinstance(x, torch.Tensor):
        return torch.clamp(y, min=x)  # type: ignore[arg-type]
    return torch.maximum(x, y) if isinstance(y, torch.Tensor) else torch.clamp(x, min=y)


def minimum(x: torch.Tensor | float, y: torch.Tensor | float) -> torch.Tensor:
    """Return the element-wise minimum. With a number as one operand, the gradient is 1 where both operands are equal.
    With two tensors it is 1/2 for each, as torch defines it."""
    import torch

    if not isinstance(x, torch.Tensor):
        return torch.clamp(y, max=x)  # type: ignore[arg-type]
    return torch.minimum(x, y) if isinstance(y, torch.Tensor) else torch.clamp(x, max=y)


def reshape(x: torch.Tensor, shape: tuple[Any, ...]) -> torch.Tensor:
    """Return `x` in the shape `shape`, whose first entry is "B". A size of -1 is computed from the sizes of
    one sample, because torch cannot infer the size for an empty batch.
    """
    sizes, known = shape[1:], math.prod(size for size in shape[1:] if size != -1)
    return x.reshape(x.shape[0], *(x.shape[1:].numel() // known if size == -1 else size for size in sizes))


def expand(x: torch.Tensor, size: tuple[Any, ...]) -> torch.Tensor:
    return x.expand(x.shape[0], *size[1:])


def flatten(x: torch.Tensor, start_dim: int, end_dim: int) -> torch.Tensor:
    """Return `x` with the dimensions `start_dim` to `end_dim` merged into one. A tensor (B) becomes (B, 1) with
    `flatten(x, 1, -1)`; torch would raise an error."""
    import torch

    is_number = x.ndim == 1 and (start_dim, end_dim) == (1, -1)
    return x.unsqueeze(1) if is_number else torch.flatten(x, start_dim, end_dim)


def squeeze(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Return `x` without the dimension `dim`. Raises ValueError if the size of this dimension is not 1; torch
    would return `x` unchanged.
    """
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
    """Return the one-hot encoding of the class numbers `x`, in torch's default float dtype. A class number out of range
    gives zeros instead of an error, because a check of values would make a GPU wait."""
    import torch

    classes = torch.arange(num_classes, device=x.device)
    return (x.unsqueeze(-1) == classes).to(torch.get_default_dtype())


def gather(x: torch.Tensor, index: torch.Tensor, dim: int) -> torch.Tensor:
    """Return `torch.gather(x, dim, index)`, where all dimensions of `x` and `index` other than `dim` are broadcast
    first."""
    import torch

    return torch.take_along_dim(x, index, dim)


def topk(x: torch.Tensor, k: int, dim: int) -> torch.Tensor:
    """Return the `k` greatest values of `x` along `dim`, the greatest first."""
    return x.topk(k, dim).values


def topk_indices(x: torch.Tensor, k: int, dim: int) -> torch.Tensor:
    """Return the int64 indices along `dim` of the `k` greatest values of `x`, the greatest first."""
    return x.topk(k, dim).indices


def detach(x: torch.Tensor) -> torch.Tensor:
    return x.detach()


def to_float(x: torch.Tensor) -> torch.Tensor:
    """Return `x` converted to torch's default float dtype (float64 in fp64 runs)."""
    import torch

    return x.to(torch.get_default_dtype())


def to_int(x: torch.Tensor) -> torch.Tensor:
    return x.long()


def to_bool(x: torch.Tensor) -> torch.Tensor:
    return x.bool()
