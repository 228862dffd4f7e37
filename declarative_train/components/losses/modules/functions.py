"""What `Elementwise` computes per element: torch's own functions, by (input, target, reduction)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def mse(input: Tensor, target: Tensor, reduction: str) -> Tensor:
    return F.mse_loss(input, target, reduction=reduction)


def l1(input: Tensor, target: Tensor, reduction: str) -> Tensor:
    return F.l1_loss(input, target, reduction=reduction)


def itself(input: Tensor, target: Tensor, reduction: str) -> Tensor:
    return input.sum() if reduction == "sum" else input


@dataclass(frozen=True, slots=True)
class Huber:
    delta: float

    def __call__(self, input: Tensor, target: Tensor, reduction: str) -> Tensor:
        return F.huber_loss(input, target, reduction=reduction, delta=self.delta)


@dataclass(frozen=True, slots=True)
class SmoothL1:
    beta: float

    def __call__(self, input: Tensor, target: Tensor, reduction: str) -> Tensor:
        return F.smooth_l1_loss(input, target, reduction=reduction, beta=self.beta)


@dataclass(frozen=True, slots=True)
class PoissonNll:
    log_input: bool
    full: bool
    eps: float

    def __call__(self, input: Tensor, target: Tensor, reduction: str) -> Tensor:
        return F.poisson_nll_loss(
            input, target, log_input=self.log_input, full=self.full, eps=self.eps, reduction=reduction
        )


class BinaryCrossEntropy(nn.Module):
    """A module, so that the weights of the positives go to the device with the term."""

    pos_weight: Tensor | None

    def __init__(self, pos_weight: float | tuple[float, ...] | None) -> None:
        super().__init__()
        weight = None if pos_weight is None else torch.tensor(pos_weight, dtype=torch.float64)
        self.register_buffer("pos_weight", weight, persistent=False)

    def forward(self, input: Tensor, target: Tensor, reduction: str) -> Tensor:
        pos_weight = None if self.pos_weight is None else self.pos_weight.to(input.dtype)
        return F.binary_cross_entropy_with_logits(input, target, pos_weight=pos_weight, reduction=reduction)


@dataclass(frozen=True, slots=True)
class CrossEntropy:
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
