"""Edges of a metric -> its items in rows, with the weight of each.

B batch, S the other dimensions of an item, N = all of them, C classes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from declarative_train.components.losses.modules.weights import in_full, item_weight


def weights(shape: torch.Size, counted: Tensor | None, mask: Tensor | None, row_weight: Tensor | None) -> Tensor | None:
    """(B, *S) float64, 0 for what does not count; None: all count the same. `counted`: bool, where not ignored."""
    weight = item_weight(mask, row_weight, len(shape), torch.float64)
    if counted is not None:
        weight = counted.to(torch.float64) if weight is None else weight * counted
    return None if weight is None else weight.expand(shape)


def not_ignored(target: Tensor, ignore_index: int | None) -> Tensor | None:
    return None if ignore_index is None or target.is_floating_point() else target != ignore_index


class ClassItems:
    """Scores (B, ..., C, ...) and targets, as numbers (B, *S) or parts for each class, -> (N, C), (N,), weights (N,).

    The class of a soft target is that of its largest part.
    """

    def __init__(self, axis: int, ignore_index: int | None) -> None:
        self.dim, self.ignore_index = axis + 1, ignore_index

    def __call__(
        self, input: Tensor, target: Tensor, mask: Tensor | None, row_weight: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        scores = in_full(input.movedim(self.dim, -1))
        number = target.argmax(self.dim) if target.is_floating_point() else target.to(torch.int64)
        weight = weights(number.shape, not_ignored(target, self.ignore_index), mask, row_weight)
        if weight is not None:
            number = torch.where(weight > 0, number, 0)  # what is ignored may be no class
        return (
            scores.reshape(-1, scores.shape[-1]),
            number.reshape(-1),
            None if weight is None else weight.reshape(-1),
        )


class YesNoItems:
    """Scores and answers (B, *S) -> (N,), bool (N,), weights (N,). An answer above one half is yes."""

    def __init__(self, ignore_index: int | None) -> None:
        self.ignore_index = ignore_index

    def __call__(
        self, input: Tensor, target: Tensor, mask: Tensor | None, row_weight: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        weight = weights(target.shape, not_ignored(target, self.ignore_index), mask, row_weight)
        answer = target if target.dtype == torch.bool else target > 0.5
        return in_full(input).reshape(-1), answer.reshape(-1), None if weight is None else weight.reshape(-1)
