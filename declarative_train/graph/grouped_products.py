"""Grouped matrix products, which mixtures of experts use, for tensors without memory."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

GROUPED: Any = getattr(torch.ops.aten, "_grouped_mm", None) and torch.ops.aten._grouped_mm.default


class EmptyGroupedProducts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Mode in which a grouped matrix product, if it is not in bfloat16, returns an empty tensor of the right shape.
    torch refuses such a product for fake tensors, although the CPU can compute it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is GROUPED and args[0].dtype != torch.bfloat16:
            return empty_grouped_product(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def empty_grouped_product(
    a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor | None = None, *_: Any, out_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Return an empty tensor with the shape that `torch.nn.functional.grouped_mm` would return. The shape depends on
    the numbers of dimensions of `a` and `b`:

    3, 3  a matrix for each group: group k of `a` times group k of `b`
    2, 3  one matrix; `offsets` says which rows of `a` belong to which group
    2, 2  a matrix for each group; `offsets` says which columns of `a` belong to which group
    """
    groups = [offsets.numel()] if a.dim() == b.dim() == 2 and offsets is not None else []
    groups = [a.shape[0]] if a.dim() == b.dim() == 3 else groups
    return a.new_empty([*groups, a.shape[-2], b.shape[-1]], dtype=out_dtype or a.dtype)
