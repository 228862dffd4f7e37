"""Functions that compute ranking metrics from labels sorted by score, and the accumulator of the Matthews correlation
coefficient.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from declarative_train.components.component import Collective, MetricModule
from declarative_train.components.losses.modules.elementwise import upcast_half
from declarative_train.components.metrics.modules.items import ClassItems, YesNoItems, weights

RowValues = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor | None]]
"""(scores (B, K), gains (B, K) float64, k) -> a value for each row (B,), and which rows count, or None for all."""


class Rows:
    """Function for `MeanOfItems` that computes a ranking metric for each row of labels. `values(scores, targets, k)`:
    returns the value of each row, and whether the row counts. `k`: only the k labels with the highest scores count;
    None: all."""

    def __init__(self, values: RowValues, k: int | None) -> None:
        self._values, self._k = values, k

    def __call__(
        self, input: Tensor, target: Tensor | None, mask: Tensor | None, row_weight: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        assert target is not None
        k = input.shape[-1] if self._k is None else min(self._k, input.shape[-1])
        values, counted = self._values(upcast_half(input), target.double(), k)
        return values, weights(values.shape, counted, mask, row_weight)


def _count_at_least(scores: Tensor, among: Tensor | None = None) -> Tensor:
    """Return (B, K): for each label, how many labels of its row have at least its score. The label itself is one of
    them. `among`: bool (B, K), True for the labels that are counted; None: all are counted.
    """
    held = scores if among is None else torch.where(among, scores, -torch.inf)
    ascending = held.sort(-1).values
    return scores.shape[-1] - torch.searchsorted(ascending, scores.contiguous()).double()


def lrap(scores: Tensor, gains: Tensor, k: int) -> tuple[Tensor, None]:
    """Return the label ranking average precision of each row, (B,). It is 1 for a row without positives or without
    negatives. A label is positive if its gain is above one half. `k` is not used.
    """
    yes = gains > 0.5
    count = yes.sum(-1)
    shares = torch.where(yes, _count_at_least(scores, yes) / _count_at_least(scores), 0)
    trivial = (count == 0) | (count == yes.shape[-1])
    return torch.where(trivial, 1, shares.sum(-1) / count.clamp(min=1)), None


def coverage_error(scores: Tensor, gains: Tensor, k: int) -> tuple[Tensor, None]:
    return torch.where(gains > 0.5, _count_at_least(scores), 0).amax(-1), None


def ranking_loss(scores: Tensor, gains: Tensor, k: int) -> tuple[Tensor, None]:
    yes = gains > 0.5
    above = torch.where(yes, _count_at_least(scores) - _count_at_least(scores, yes), 0).sum(-1)
    pairs = yes.sum(-1) * (~yes).sum(-1)
    return torch.where(pairs > 0, above / pairs.clamp(min=1), 0), None


def recall_at_k(scores: Tensor, gains: Tensor, k: int) -> tuple[Tensor, Tensor]:
    yes = gains > 0.5
    count = yes.sum(-1)
    found = yes.gather(-1, scores.topk(k, -1).indices).sum(-1)
    return found.double() / count.clamp(min=1), count > 0


def ndcg(scores: Tensor, gains: Tensor, k: int) -> tuple[Tensor, None]:
    """Return the normalised discounted cumulative gain of each row, (B,). Only the first `k` ranks count. If labels
    have equal scores, each gets the mean of their discounts (McSherry and Najork, 2008).
    """
    size = scores.shape[-1]
    discount = 1 / torch.arange(2, size + 2, dtype=torch.float64, device=scores.device).log2()
    discount[k:] = 0
    ordered, order = scores.sort(-1, descending=True)
    group = torch.zeros_like(order)
    group[:, 1:] = (ordered[:, 1:] != ordered[:, :-1]).cumsum(-1)

    def sums(values: Tensor) -> Tensor:
        return torch.zeros_like(gains).scatter_add_(-1, group, values)

    shared = sums(discount.expand_as(gains)) / sums(torch.ones_like(gains)).clamp(min=1)
    gain = (sums(gains.gather(-1, order)) * shared).sum(-1)
    best = (gains.sort(-1, descending=True).values * discount).sum(-1)
    return torch.where(best > 0, gain / torch.where(best > 0, best, 1), 0), None


class Correlation(MetricModule):
    """Accumulator of the Matthews correlation coefficient of predicted and actual classes. For several classes it is
    that of Gorodkin, 2004."""

    def __init__(
        self, items: ClassItems | YesNoItems, threshold: float | None, num_classes: int, device: torch.device
    ) -> None:
        self._items, self._threshold, self._num_classes, self._device = items, threshold, num_classes, device
        self.reset()

    def reset(self) -> None:
        self._counts = torch.zeros(3, self._num_classes, dtype=torch.float64, device=self._device)

    def update(self, input: Tensor, target: Tensor | None, mask: Tensor | None, row_weight: Tensor | None) -> None:
        assert target is not None
        with torch.no_grad():
            scores, actual, weight = self._items(input, target, mask, row_weight)
            predicted = scores.argmax(-1) if self._threshold is None else (scores > self._threshold).flatten().long()
            actual = actual.flatten().long()
            weight = torch.ones(actual.shape, dtype=torch.float64, device=actual.device) if weight is None else weight
            right, all_predicted, all_actual = self._counts.unbind()
            right.scatter_add_(0, actual, weight.flatten() * (predicted == actual))
            all_predicted.scatter_add_(0, predicted, weight.flatten())
            all_actual.scatter_add_(0, actual, weight.flatten())

    def compute(self, ranks: Collective) -> Tensor:
        right, predicted, actual = ranks.sum(self._counts).unbind()
        count = actual.sum()
        shared = count * right.sum() - (predicted * actual).sum()
        spread = (count.square() - predicted.square().sum()) * (count.square() - actual.square().sum())
        value = torch.where(spread > 0, shared / spread.clamp(min=1e-300).sqrt(), 0)
        return torch.where(count > 0, value, torch.nan)
