"""Modules of classification metrics: functions that turn scores and targets into items, and accumulators of counts or
of scores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from declarative_train.components.component import Collective, MetricModule
from declarative_train.components.losses.modules.elementwise import item_weight, upcast_half


def weights(shape: torch.Size, counted: Tensor | None, mask: Tensor | None, row_weight: Tensor | None) -> Tensor | None:
    """Return the weight of each item of a batch, (B, *S) float64, or None if all weights are 1. The weight is the
    product of `mask`, `row_weight` and `counted`, as far as they are given. `shape`: (B, *S). `counted`: bool, False
    for ignored items.
    """
    weight = item_weight(mask, row_weight, len(shape), torch.float64)
    if counted is not None:
        weight = counted.to(torch.float64) if weight is None else weight * counted
    return None if weight is None else weight.expand(shape)


def not_ignored(target: Tensor, ignore_index: int | None) -> Tensor | None:
    return None if ignore_index is None or target.is_floating_point() else target != ignore_index


class ClassItems:
    """Function that turns the scores and targets of a batch into N items with C classes.

    Input: scores (B, ..., C, ...), and targets, which are class numbers (B, *S) or probabilities with the shape of the
    scores. Result: a tuple of scores (N, C), class numbers (N,) and weights (N,); weights are None if all are 1.
    Probabilities are converted to the number of the most probable class.
    """

    def __init__(self, axis: int, ignore_index: int | None) -> None:
        self.dim, self.ignore_index = axis + 1, ignore_index

    def __call__(
        self, input: Tensor, target: Tensor, mask: Tensor | None, row_weight: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        scores = upcast_half(input.movedim(self.dim, -1))
        number = target.argmax(self.dim) if target.is_floating_point() else target.to(torch.int64)
        weight = weights(number.shape, not_ignored(target, self.ignore_index), mask, row_weight)
        if weight is not None:
            number = torch.where(weight > 0, number, 0)  # ignored targets may be out of range
        return (
            scores.reshape(-1, scores.shape[-1]),
            number.reshape(-1),
            None if weight is None else weight.reshape(-1),
        )


class YesNoItems:
    """Function from scores and targets, both (B, *S), to N items with L labels, for binary and multilabel tasks.

    The result is (scores (N, L), answers (N, L), weights (N, L)). An answer is True if the target is above one half.
    The weights are None if all are 1. The labels are dimension `axis` of a sample; None: one label, and each element is
    an item.
    """

    def __init__(self, axis: int | None, ignore_index: int | None) -> None:
        self.dim, self.ignore_index = None if axis is None else axis + 1, ignore_index

    def __call__(
        self, input: Tensor, target: Tensor, mask: Tensor | None, row_weight: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        weight = weights(target.shape, not_ignored(target, self.ignore_index), mask, row_weight)
        answer = target if target.dtype == torch.bool else target > 0.5
        return self._rows(upcast_half(input)), self._rows(answer), None if weight is None else self._rows(weight)

    def _rows(self, x: Tensor) -> Tensor:
        return x.reshape(-1, 1) if self.dim is None else x.movedim(self.dim, -1).reshape(-1, x.shape[self.dim])


Score = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(true positives, predicted, actual), each (C,)."""


def precision(correct: Tensor, predicted: Tensor, actual: Tensor) -> Tensor:
    return _divide(correct, predicted)


def recall(correct: Tensor, predicted: Tensor, actual: Tensor) -> Tensor:
    return _divide(correct, actual)


def f1(correct: Tensor, predicted: Tensor, actual: Tensor) -> Tensor:
    return _divide(2 * correct, predicted + actual)


def iou(correct: Tensor, predicted: Tensor, actual: Tensor) -> Tensor:
    return _divide(correct, predicted + actual - correct)


class FromCounts(MetricModule):
    """Accumulator of counts per class or label, from which a metric such as precision is computed.

    `threshold`: a label is predicted if its score is higher; None: the class with the highest score is predicted. A
    class or label that is never predicted and never a target has the value 0. The average `macro` leaves out such a
    class, but not such a label, as in torchmetrics."""

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
            scores, actual, weight = self._items(input, target, mask, row_weight)
            if weight is None:
                weight = torch.ones(actual.shape, dtype=torch.float64, device=actual.device)
            self._items_seen += weight.sum()
            if self._threshold is not None:
                predicted = scores > self._threshold
                self._counts += torch.stack(
                    [(weight * part).sum(0) for part in (predicted & actual, predicted, actual)]
                )
                return
            predicted = scores.argmax(-1)
            correct, all_predicted, all_actual = self._counts.unbind()
            correct.scatter_add_(0, actual, weight * (predicted == actual))
            all_predicted.scatter_add_(0, predicted, weight)
            all_actual.scatter_add_(0, actual, weight)

    def compute(self, ranks: Collective) -> Tensor:
        total = ranks.sum(torch.cat([self._counts.flatten(), self._items_seen]))
        correct, predicted, actual = total[:-1].view(3, -1).unbind()
        if self._average == "micro":
            correct, predicted, actual = (part.sum(0, keepdim=True) for part in (correct, predicted, actual))
        weight = actual if self._average == "weighted" else torch.ones_like(actual)
        if self._average == "macro" and self._threshold is None:
            weight = (predicted + actual > 0).to(torch.float64)
        value = _divide((weight * self._score(correct, predicted, actual)).sum(), weight.sum())
        return torch.where(total[-1] > 0, value, torch.nan)


def _divide(a: Tensor, b: Tensor) -> Tensor:
    """Return a / b, and 0 where b is 0."""
    return torch.where(b == 0, 0, a / torch.where(b == 0, 1, b))


Area = Callable[[Tensor, Tensor], Tensor]
"""(yes, no), each (S,): float64 counts of the answers at each of S scores, in ascending order."""


def auroc(yes: Tensor, no: Tensor) -> Tensor:
    """Return the area under the ROC curve: of all pairs of a positive and a negative, the share in which the positive
    has the higher score. A pair with equal scores counts half. `yes`, `no`: number of positives and of negatives at
    each distinct score, in ascending order of the scores.
    """
    below = no.cumsum(0) - no / 2
    return (yes * below).sum() / (yes.sum() * no.sum())


def average_precision(yes: Tensor, no: Tensor) -> Tensor:
    """Return the average precision: the mean, over the positives, of the share of positives among the items that score
    at least as high. `yes`, `no`: number of positives and of negatives at each distinct score, in ascending order of
    the scores."""
    found, all_found = yes.flip(0).cumsum(0), (yes + no).flip(0).cumsum(0)
    return (yes.flip(0) * found / all_found).sum() / yes.sum()


class OfRanking(MetricModule):
    """Accumulator of scores for a metric that depends only on their order. For each class, its items are the positives,
    and all other items are the negatives. The averages `macro` and `weighted` are over the classes or labels that have
    both. With `micro`, the items of all classes or labels are compared together."""

    def __init__(
        self,
        area: Area,
        items: ClassItems | YesNoItems,
        num_columns: int,
        average: Literal["macro", "micro", "weighted"],
        device: torch.device,
    ) -> None:
        self._area, self._items, self._num_columns, self._average = area, items, num_columns, average
        self._is_of_classes, self._device = isinstance(items, ClassItems), device
        self.reset()

    def reset(self) -> None:
        self._kept: list[tuple[Tensor, Tensor]] = []

    def update(self, input: Tensor, target: Tensor | None, mask: Tensor | None, row_weight: Tensor | None) -> None:
        """Store copies of a batch's scores and targets. An item with weight 0 gets the target -1, which means that it
        does not count. Copies are needed because the tensors of a batch are reused.
        """
        assert target is not None
        with torch.no_grad():
            scores, answer, weight = self._items(input, target, mask, row_weight)
            answer = answer.to(torch.int64 if self._is_of_classes else torch.int8, copy=True)
            scores = scores.clone()
            if weight is not None:
                counts = weight > 0
                answer = torch.where(counts, answer, -1)
                scores = torch.where(counts.unsqueeze(-1) if self._is_of_classes else counts, scores, 0)
            self._kept.append((scores, answer))

    def compute(self, ranks: Collective) -> Tensor:
        columns = self._num_columns
        scores = [torch.empty((0, columns), dtype=torch.float64, device=self._device)]
        answers = [torch.empty((0,) if self._is_of_classes else (0, columns), dtype=torch.int64, device=self._device)]
        for some, answer in self._kept:
            rows = answer >= 0 if self._is_of_classes else (answer >= 0).any(-1)
            scores.append(some[rows].double())
            answers.append(answer[rows].long())
        all_scores, all_answers = ranks.concatenate(torch.cat(scores)), ranks.concatenate(torch.cat(answers))
        if all_scores.isnan().any():
            return torch.full((), torch.nan, dtype=torch.float64, device=self._device)
        if self._is_of_classes:
            all_scores = all_scores.softmax(-1)
            all_answers = all_answers.unsqueeze(-1) == torch.arange(columns, device=self._device)
            counts = torch.ones_like(all_answers)
        else:
            counts, all_answers = all_answers >= 0, all_answers == 1
        if self._average == "micro":
            return self._one(all_scores[counts], all_answers[counts])
        each = torch.stack(
            [self._one(all_scores[counts[:, c], c], all_answers[counts[:, c], c]) for c in range(columns)]
        )
        weight = all_answers.sum(0).double() if self._average == "weighted" else torch.ones_like(each)
        weight = torch.where(each.isnan(), 0, weight)
        return (each.nan_to_num() * weight).sum() / weight.sum()

    def _one(self, scores: Tensor, answer: Tensor) -> Tensor:
        if not answer.any() or answer.all():
            return torch.full((), torch.nan, dtype=torch.float64, device=self._device)
        distinct, score = torch.unique(scores, return_inverse=True)
        counts = torch.zeros(2, len(distinct), dtype=torch.float64, device=self._device)
        counts[0].scatter_add_(0, score, answer.double())
        counts[1].scatter_add_(0, score, (~answer).double())
        return self._area(*counts.unbind())
