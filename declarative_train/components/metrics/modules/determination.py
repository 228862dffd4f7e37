"""The coefficient of determination: how much better than the mean of the target."""

from __future__ import annotations

import torch
from torch import Tensor

from declarative_train.components.component import Collective, MetricModule
from declarative_train.components.losses.modules.weights import in_full
from declarative_train.components.metrics.modules.items import not_ignored, weights


class Determination(MetricModule):
    """Four sums for each of the D elements of a row: weight, target, its square, squared error. The mean over D."""

    def __init__(self, num_outputs: int, ignore_index: int | None, device: torch.device) -> None:
        self._num_outputs, self._ignore_index, self._device = num_outputs, ignore_index, device
        self.reset()

    def reset(self) -> None:
        self._sums = torch.zeros(4, self._num_outputs, dtype=torch.float64, device=self._device)

    def update(self, input: Tensor, target: Tensor | None, mask: Tensor | None, row_weight: Tensor | None) -> None:
        assert target is not None
        with torch.no_grad():
            weight = weights(target.shape, not_ignored(target, self._ignore_index), mask, row_weight)
            x, y = (part.reshape(len(target), -1).double() for part in (in_full(input), target))
            w = torch.ones_like(y) if weight is None else weight.reshape(y.shape)
            values = torch.stack([torch.ones_like(y), y, y.square(), (x - y).square()])
            self._sums += torch.where(w > 0, values * w, 0).sum(1)

    def compute(self, ranks: Collective) -> Tensor:
        weight, target, square, error = ranks.sum(self._sums).unbind()
        spread = square - target.square() / weight
        return (1 - error / torch.where(spread > 0, spread, torch.nan)).mean()
