"""Accumulators of means over items, of functions of such means, and of the coefficient of determination. They hold only
sums, on the device. The file also has the functions that compute the values of the items of a batch, which
`MeanOfItems` adds up.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from declarative_train.components.component import Collective, MetricModule
from declarative_train.components.losses.modules.elementwise import upcast_half
from declarative_train.components.metrics.modules.items import ClassItems, YesNoItems, not_ignored, weights

Values = Callable[[Tensor, Tensor | None, Tensor | None, Tensor | None], tuple[Tensor, Tensor | None]]
"""(input, target, mask, row_weight) -> a value for each item, and the weight of each or None."""


class MeanOfItems(MetricModule):
    """Accumulator of a mean over items. `values`: function that computes the value and the weight of each item of a
    batch. `finish`: function that turns the mean into the metric, such as a square root.
    """

    def __init__(
        self, values: Values, device: torch.device, finish: Callable[[Tensor], Tensor] = lambda mean: mean
    ) -> None:
        self._values, self._finish, self._device = values, finish, device
        self.reset()

    def reset(self) -> None:
        self._sum = torch.zeros((), dtype=torch.float64, device=self._device)
        self._weight = torch.zeros((), dtype=torch.float64, device=self._device)
        self._whole = 0  # items of weight 1, counted without reading from the device

    def update(self, input: Tensor, target: Tensor | None, mask: Tensor | None, row_weight: Tensor | None) -> None:
        with torch.no_grad():
            values, weight = self._values(input, target, mask, row_weight)
            if weight is None:
                self._sum += values.sum(dtype=torch.float64)
                self._whole += values.numel()
            else:
                self._sum += torch.where(weight > 0, values * weight, 0).sum()
                self._weight += weight.sum()

    def compute(self, ranks: Collective) -> Tensor:
        total, count = ranks.sum(torch.stack([self._sum, self._weight + self._whole])).unbind()
        return self._finish(total / count)


class InputElements:
    """Function that returns the values and the weights of the items for `MeanOfItems`. The values are the elements (B,
    *S) of the input, unchanged."""

    def __call__(
        self, input: Tensor, target: Tensor | None, mask: Tensor | None, row_weight: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        return input, weights(input.shape, None, mask, row_weight)


class Errors:
    """Function (input, target, mask, row_weight) -> (values, weights), which the metric `MeanOfItems` calls. The values
    are `error(input, target)`, one for each element (B, *S)."""

    def __init__(self, error: Callable[[Tensor, Tensor], Tensor], ignore_index: int | None) -> None:
        self._error, self._ignore_index = error, ignore_index

    def __call__(
        self, input: Tensor, target: Tensor | None, mask: Tensor | None, row_weight: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        assert target is not None
        weight = weights(target.shape, not_ignored(target, self._ignore_index), mask, row_weight)
        x = upcast_half(input)
        return self._error(x, target.to(x.dtype)), weight


class TopKHits:
    """Function that computes the value and the weight of each item for `MeanOfItems`. The value is 1 if the target
    class is among the `top_k` classes with the highest scores, else 0."""

    def __init__(self, items: ClassItems, top_k: int) -> None:
        self._items, self._top_k = items, top_k

    def __call__(
        self, input: Tensor, target: Tensor | None, mask: Tensor | None, row_weight: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        assert target is not None
        scores, number, weight = self._items(input, target, mask, row_weight)
        if self._top_k == 1:
            return scores.argmax(-1) == number, weight
        return (scores.topk(self._top_k, -1).indices == number.unsqueeze(-1)).any(-1), weight


class BinaryHits:
    """Function that returns 1 for each item that is predicted correctly and 0 for every other, as `MeanOfItems` needs.
    An item is predicted positive if its score is above `threshold`."""

    def __init__(self, items: YesNoItems, threshold: float) -> None:
        self._items, self._threshold = items, threshold

    def __call__(
        self, input: Tensor, target: Tensor | None, mask: Tensor | None, row_weight: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        assert target is not None
        scores, answer, weight = self._items(input, target, mask, row_weight)
        return (scores > self._threshold) == answer, weight


class CrossEntropies:
    """Function (input, target, mask, row_weight) -> (cross entropy of each item, weights), which the metric
    `MeanOfItems` calls."""

    def __init__(self, items: ClassItems) -> None:
        self._items = items

    def __call__(
        self, input: Tensor, target: Tensor | None, mask: Tensor | None, row_weight: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        assert target is not None
        scores, number, weight = self._items(input, target, mask, row_weight)
        return F.cross_entropy(scores, number, reduction="none"), weight


class ItemLoss:
    """Function that returns the values and the weights of the items for `MeanOfItems`. The values are `input` (B, *S),
    unchanged: the cross entropy of each item, which a loss with the key `chunks` has already computed."""

    def __init__(self, ignore_index: int | None) -> None:
        self._ignore_index = ignore_index

    def __call__(
        self, input: Tensor, target: Tensor | None, mask: Tensor | None, row_weight: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        assert target is not None
        return input, weights(target.shape, not_ignored(target, self._ignore_index), mask, row_weight)


def squared(x: Tensor, y: Tensor) -> Tensor:
    return (x - y).square()


def absolute(x: Tensor, y: Tensor) -> Tensor:
    return (x - y).abs()


def relative(x: Tensor, y: Tensor) -> Tensor:
    """Return |x - y| / |y| for each element. A |y| below 1.17e-06 is replaced by this number, as in torchmetrics."""
    return (x - y).abs() / y.abs().clamp(min=1.17e-06)


class Determination(MetricModule):
    """Accumulator of the coefficient of determination: 1 - (sum of squared errors) / (sum of squared deviations of the
    target from its mean), for each of the D elements of a row; the result is the mean over the D elements.

    Deviations are computed from targets minus the first target, so targets far from 0 lose no precision, and equal
    targets have deviation 0.
    """

    def __init__(self, num_outputs: int, ignore_index: int | None, device: torch.device) -> None:
        self._num_outputs, self._ignore_index, self._device = num_outputs, ignore_index, device
        self.reset()

    def reset(self) -> None:
        self._sums = torch.zeros(4, self._num_outputs, dtype=torch.float64, device=self._device)
        self._first = self._sums[0]

    def update(self, input: Tensor, target: Tensor | None, mask: Tensor | None, row_weight: Tensor | None) -> None:
        assert target is not None
        with torch.no_grad():
            weight = weights(target.shape, not_ignored(target, self._ignore_index), mask, row_weight)
            x, y = (part.reshape(len(target), -1).double() for part in (upcast_half(input), target))
            w = torch.ones_like(y) if weight is None else weight.reshape(y.shape)
            self._first = torch.where(self._sums[0] > 0, self._first, _first(y, w))
            offset = y - self._first
            values = torch.stack([torch.ones_like(y), offset, offset.square(), (x - y).square()])
            self._sums += torch.where(w > 0, values * w, 0).sum(1)

    def compute(self, ranks: Collective) -> Tensor:
        of_ranks = ranks.concatenate(torch.cat([self._first.unsqueeze(0), self._sums]).unsqueeze(0))
        first, weight, offset, square, error = of_ranks.unbind(1)  # each (ranks, D)
        mean = torch.where(weight > 0, first - _first(first, weight) + offset / weight, 0)
        inside = torch.where(weight > 0, square - offset.square() / weight, 0)
        spread = (inside + weight * mean.square()).sum(0) - (weight * mean).sum(0).square() / weight.sum(0)
        return (1 - error.sum(0) / torch.where(spread > 0, spread, torch.nan)).mean()


def _first(x: Tensor, weight: Tensor) -> Tensor:
    """Return, for each column of x (N, D), the value in the first row whose weight is above 0."""
    return x.gather(0, (weight > 0).int().argmax(0, keepdim=True)).squeeze(0)
