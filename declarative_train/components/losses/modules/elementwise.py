"""Terms that compare element with element: a function of (input, target) per element, and the number of elements; and
the Kullback-Leibler divergence, which is divided by rows."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from declarative_train.components.component import LossModule
from declarative_train.components.losses.modules.weights import count_items, in_full, item_weight

Function = Callable[[Tensor, Tensor, str], Tensor]
"""(input, target, reduction): `reduction` is torch's "sum" or "none"."""


class Elementwise(nn.Module, LossModule):
    """input, target, mask: (B, *shape). The count is that of the elements, or the sum of their mask.

    Where the mask is 0 the values do not matter, not even nan: they are put aside before the function sees them.
    """

    def __init__(self, function: Function, shape: tuple[int, ...], masked: bool) -> None:
        super().__init__()
        self.function = function
        self.num_items = prod(shape)
        self.items_per_row = None if masked else float(self.num_items)

    def sum(self, input: Tensor, target: Tensor | None, mask: Tensor | None, row_weight: Tensor | None) -> Tensor:
        x = in_full(input)
        y = x.new_zeros(()) if target is None else target.to(x.dtype)
        if mask is not None:
            keep = mask if mask.dtype == torch.bool else mask != 0
            x, y = torch.where(keep, x, 0), torch.where(keep, y, 0)
        weight = item_weight(mask, row_weight, x.ndim, x.dtype)
        if weight is None:
            return self.function(x, y, "sum")
        return (self.function(x, y, "none") * weight).sum()

    def count(self, target: Tensor | None, mask: Tensor | None, row_weight: Tensor | None, rows: int) -> Tensor:
        return count_items(mask, row_weight, rows, self.num_items)


class Divergence(nn.Module, LossModule):
    """input (log-probabilities) and target: (B, ...); mask (B,). The count is that of the rows: torch's `batchmean`."""

    def __init__(self, log_target: bool, masked: bool) -> None:
        super().__init__()
        self.log_target = log_target
        self.items_per_row = None if masked else 1.0

    def sum(self, input: Tensor, target: Tensor | None, mask: Tensor | None, row_weight: Tensor | None) -> Tensor:
        assert target is not None
        x = in_full(input)
        y = target.to(x.dtype)
        if mask is not None:  # where it is 0 the values do not matter, not even nan
            keep = (mask != 0).reshape(-1, *[1] * (x.ndim - 1))
            x, y = torch.where(keep, x, 0), torch.where(keep, y, 0)
        weight = item_weight(mask, row_weight, 1, x.dtype)
        if weight is None:
            return F.kl_div(x, y, reduction="sum", log_target=self.log_target)
        each = F.kl_div(x, y, reduction="none", log_target=self.log_target)
        return (each.flatten(1).sum(1) * weight).sum()

    def count(self, target: Tensor | None, mask: Tensor | None, row_weight: Tensor | None, rows: int) -> Tensor:
        return count_items(mask, row_weight, rows, 1)
