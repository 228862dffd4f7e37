"""Modules of element-wise losses, and functions that all losses use to compute the weights of items from mask and row
weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from declarative_train.components.component import LossModule


def item_weight(mask: Tensor | None, row_weight: Tensor | None, rank: int, dtype: torch.dtype) -> Tensor | None:
    """Return the weight of each item: mask times row weight. If only one of them is given, it is the weight; if both
    are None, return None, which means 1 for every item. The weight has `rank` dimensions and can be broadcast to the
    items (B, *S).
    """
    if row_weight is not None:
        rows = row_weight.to(dtype).reshape(-1, *[1] * (rank - 1))
        return rows if mask is None else rows * mask.to(dtype)
    return None if mask is None else mask.to(dtype)


def count_items(mask: Tensor | None, row_weight: Tensor | None, rows: int, items_per_row: int) -> Tensor:
    """Return the number of items, each counted with its weight: mask times row weight. A missing mask or row weight
    counts as 1. The result is a float64 scalar on the device of these tensors; on the CPU if both are None. `rows`:
    number of rows, used only if both are None. `items_per_row`: number of items of a row, used only without a mask."""
    if mask is not None:
        weight = mask.to(torch.float64)
        if row_weight is not None:
            weight = weight * row_weight.to(torch.float64).reshape(-1, *[1] * (mask.ndim - 1))
        return weight.sum()
    if row_weight is not None:
        return row_weight.sum(dtype=torch.float64) * items_per_row
    return torch.tensor(float(rows * items_per_row), dtype=torch.float64)


def upcast_half(input: Tensor) -> Tensor:
    """Return `input` in float32 if it is in half precision, else unchanged. In half precision the sum of a loss would
    be inaccurate.
    """
    return input if input.dtype in (torch.float32, torch.float64) else input.float()


Function = Callable[[Tensor, Tensor, str], Tensor]
"""(input, target, reduction): `reduction` is torch's "sum" or "none"."""


class ElementwiseModule(nn.Module, LossModule):
    """Loss computed by a `function` of input and target. Shapes of input, target and mask: (B, *shape). `count` is the
    number of elements or, with a mask, the sum of the mask. Masked elements may be nan: they are replaced by 0 before
    `function` is called.
    """

    def __init__(self, function: Function, shape: tuple[int, ...], masked: bool) -> None:
        super().__init__()
        self.function = function
        self.num_items = prod(shape)
        self.items_per_row = None if masked else float(self.num_items)

    def sum(self, input: Tensor, target: Tensor | None, mask: Tensor | None, row_weight: Tensor | None) -> Tensor:
        x = upcast_half(input)
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
    """Kullback-Leibler divergence of input (log-probabilities) and target, both (B, ...). `mask`: (B,). `count` is the
    number of rows, as with torch's reduction `batchmean`. With a mask it is the sum of the mask.
    """

    def __init__(self, log_target: bool, masked: bool) -> None:
        super().__init__()
        self.log_target = log_target
        self.items_per_row = None if masked else 1.0

    def sum(self, input: Tensor, target: Tensor | None, mask: Tensor | None, row_weight: Tensor | None) -> Tensor:
        assert target is not None
        x = upcast_half(input)
        y = target.to(x.dtype)
        if mask is not None:  # masked values are ignored, even nan
            keep = (mask != 0).reshape(-1, *[1] * (x.ndim - 1))
            x, y = torch.where(keep, x, 0), torch.where(keep, y, 0)
        weight = item_weight(mask, row_weight, 1, x.dtype)
        if weight is None:
            return F.kl_div(x, y, reduction="sum", log_target=self.log_target)
        each = F.kl_div(x, y, reduction="none", log_target=self.log_target)
        return (each.flatten(1).sum(1) * weight).sum()

    def count(self, target: Tensor | None, mask: Tensor | None, row_weight: Tensor | None, rows: int) -> Tensor:
        return count_items(mask, row_weight, rows, 1)


def mse(input: Tensor, target: Tensor, reduction: str) -> Tensor:
    return F.mse_loss(input, target, reduction=reduction)


def l1(input: Tensor, target: Tensor, reduction: str) -> Tensor:
    return F.l1_loss(input, target, reduction=reduction)


def return_input(input: Tensor, target: Tensor, reduction: str) -> Tensor:
    return input.sum() if reduction == "sum" else input


@dataclass(frozen=True, slots=True)
class HuberFunction:
    delta: float

    def __call__(self, input: Tensor, target: Tensor, reduction: str) -> Tensor:
        return F.huber_loss(input, target, reduction=reduction, delta=self.delta)


@dataclass(frozen=True, slots=True)
class SmoothL1Function:
    beta: float

    def __call__(self, input: Tensor, target: Tensor, reduction: str) -> Tensor:
        return F.smooth_l1_loss(input, target, reduction=reduction, beta=self.beta)


@dataclass(frozen=True, slots=True)
class PoissonNllFunction:
    log_input: bool
    full: bool
    eps: float

    def __call__(self, input: Tensor, target: Tensor, reduction: str) -> Tensor:
        return F.poisson_nll_loss(
            input, target, log_input=self.log_input, full=self.full, eps=self.eps, reduction=reduction
        )


class BinaryCrossEntropy(nn.Module):
    """Function that computes the binary cross entropy of each element. It is an `nn.Module`, so that `pos_weight` is
    moved to a device together with the model.
    """

    pos_weight: Tensor | None

    def __init__(self, pos_weight: float | tuple[float, ...] | None) -> None:
        super().__init__()
        weight = None if pos_weight is None else torch.tensor(pos_weight, dtype=torch.float64)
        self.register_buffer("pos_weight", weight, persistent=False)

    def forward(self, input: Tensor, target: Tensor, reduction: str) -> Tensor:
        pos_weight = None if self.pos_weight is None else self.pos_weight.to(input.dtype)
        return F.binary_cross_entropy_with_logits(input, target, pos_weight=pos_weight, reduction=reduction)


@dataclass(frozen=True, slots=True)
class CrossEntropyFunction:
    label_smoothing: float

    def __call__(
        self, input: Tensor, target: Tensor, *, weight: Tensor | None, ignore_index: int, reduction: str
    ) -> Tensor:
        return F.cross_entropy(
            input,
            target,
            weight=weight,
            ignore_index=ignore_index,
            reduction=reduction,
            label_smoothing=self.label_smoothing,
        )


def nll(input: Tensor, target: Tensor, *, weight: Tensor | None, ignore_index: int, reduction: str) -> Tensor:
    return F.nll_loss(input, target, weight=weight, ignore_index=ignore_index, reduction=reduction)
