"""Metrics of how many were found, and how many of those found were right: three counts per class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from declarative_train.components.component import Collective, MetricModule
from declarative_train.components.metrics.modules.items import ClassItems, YesNoItems

Score = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(right, said, there), each (C,): items of a class that were said to be of it, all said to be, all that are."""


def precision(right: Tensor, said: Tensor, there: Tensor) -> Tensor:
    return _divide(right, said)


def recall(right: Tensor, said: Tensor, there: Tensor) -> Tensor:
    return _divide(right, there)


def f1(right: Tensor, said: Tensor, there: Tensor) -> Tensor:
    return _divide(2 * right, said + there)


class FromCounts(MetricModule):
    """`threshold` None: multiclass, the highest score is what is said. Else binary: C is 1, about the yes alone.

    Without anything said or there a class has 0, and `macro` leaves it out: torchmetrics' rules.
    """

    def __init__(
        self,
        score: Score,
        items: ClassItems | YesNoItems,
        threshold: float | None,
        num_classes: int,
        average: Literal["macro", "micro", "weighted"],
        device: torch.device,
    ) -> None:
        self._score, self._items, self._threshold, self._average = score, items, threshold, average
        self._num_classes, self._device = num_classes, device
        self.reset()

    def reset(self) -> None:
        self._counts = torch.zeros(3, self._num_classes, dtype=torch.float64, device=self._device)
        self._items_seen = torch.zeros(1, dtype=torch.float64, device=self._device)

    def update(self, input: Tensor, target: Tensor | None, mask: Tensor | None, row_weight: Tensor | None) -> None:
        assert target is not None
        with torch.no_grad():
            scores, there, weight = self._items(input, target, mask, row_weight)
            if weight is None:
                weight = torch.ones(there.shape, dtype=torch.float64, device=there.device)
            self._items_seen += weight.sum()
            if self._threshold is not None:
                said = scores > self._threshold
                self._counts += torch.stack([(weight * part).sum() for part in (said & there, said, there)]).view(3, 1)
                return
            said = scores.argmax(-1)
            right, all_said, all_there = self._counts.unbind()
            right.scatter_add_(0, there, weight * (said == there))
            all_said.scatter_add_(0, said, weight)
            all_there.scatter_add_(0, there, weight)

    def compute(self, ranks: Collective) -> Tensor:
        total = ranks.sum(torch.cat([self._counts.flatten(), self._items_seen]))
        right, said, there = total[:-1].view(3, -1).unbind()
        if self._average == "micro":
            right, said, there = (part.sum(0, keepdim=True) for part in (right, said, there))
        weight = there if self._average == "weighted" else torch.ones_like(there)
        if self._average == "macro" and self._threshold is None:
            weight = (said + there > 0).to(torch.float64)
        value = _divide((weight * self._score(right, said, there)).sum(), weight.sum())
        return torch.where(total[-1] > 0, value, torch.nan)


def _divide(a: Tensor, b: Tensor) -> Tensor:
    """0 where there is nothing to divide by."""
    return torch.where(b == 0, 0, a / torch.where(b == 0, 1, b))
