"""Kullback-Leibler divergence, divided by rows."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from declarative_train.components.component import LossModule
from declarative_train.components.losses.modules.weights import count_items, in_full, item_weight


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
