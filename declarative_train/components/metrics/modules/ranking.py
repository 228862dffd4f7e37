"""Metrics of the order of all items: every score is kept until the end, and torchmetrics computes them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from declarative_train.components.component import Collective, MetricModule
from declarative_train.components.metrics.modules.items import ClassItems, YesNoItems

Curve = Callable[..., Tensor]


class OfRanking(MetricModule):
    """`curve` is torchmetrics' function of (preds, target) for yes and no; classes are taken one against the rest, of
    those that have items and do not have all."""

    def __init__(
        self,
        curve: Curve,
        items: ClassItems | YesNoItems,
        num_classes: int | None,
        average: Literal["macro", "weighted"],
        device: torch.device,
    ) -> None:
        self._curve, self._items, self._num_classes, self._average = curve, items, num_classes, average
        self._device = device
        self.reset()

    def reset(self) -> None:
        self._kept: list[tuple[Tensor, Tensor, Tensor | None]] = []

    def update(self, input: Tensor, target: Tensor | None, mask: Tensor | None, row_weight: Tensor | None) -> None:
        assert target is not None
        with torch.no_grad():
            scores, number, weight = self._items(input, target, mask, row_weight)
            kept = None if weight is None else weight > 0
            self._kept.append((scores.clone(), number.clone(), kept))  # the batch's own tensors may be used again

    def compute(self, ranks: Collective) -> Tensor:
        shape = (0,) if self._num_classes is None else (0, self._num_classes)
        scores = [torch.empty(shape, dtype=torch.float64, device=self._device)]
        numbers = [torch.empty(0, dtype=torch.int64, device=self._device)]
        for some, number, kept in self._kept:
            scores.append((some if kept is None else some[kept]).double())
            numbers.append((number if kept is None else number[kept]).long())
        all_scores, all_numbers = ranks.concatenate(torch.cat(scores)), ranks.concatenate(torch.cat(numbers))
        if all_scores.isnan().any():
            return torch.full((), torch.nan, dtype=torch.float64, device=self._device)
        if self._num_classes is None:
            return self._one(all_scores, all_numbers == 1)
        parts = all_scores.softmax(-1)
        there = torch.bincount(all_numbers, minlength=self._num_classes).double()
        each = torch.stack([self._one(parts[:, c], all_numbers == c) for c in range(self._num_classes)])
        weight = torch.where(each.isnan(), 0, there if self._average == "weighted" else 1)
        return (each.nan_to_num() * weight).sum() / weight.sum()

    def _one(self, scores: Tensor, answer: Tensor) -> Tensor:
        """torchmetrics would put scores that look like logits through a float sigmoid, where high ones become equal:
        their ranks have the same order, and are left as they are."""
        if not answer.any() or answer.all():
            return torch.full((), torch.nan, dtype=torch.float64, device=self._device)
        distinct, rank = torch.unique(scores, return_inverse=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = self._curve(rank.double() / max(1, len(distinct) - 1), answer.long(), validate_args=False)
        return value.double()
