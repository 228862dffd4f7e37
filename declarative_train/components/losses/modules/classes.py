"""Modules of losses over classes: scores are compared with class numbers or class probabilities.

B batch, C classes, S the other dimensions. Scores have the shape (B, *S) with a dimension C inserted,
class numbers (B, *S), and probabilities the shape of the scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Protocol

import torch
from torch import Tensor, nn

from declarative_train.components.component import LossModule
from declarative_train.components.layers.modules.divided import TensorRanks
from declarative_train.components.losses.modules.elementwise import (
    CrossEntropyFunction,
    count_items,
    item_weight,
    upcast_half,
)

NOTHING_IGNORED = -(2**62)  # torch always has an ignore_index: this one cannot occur in a target


class ClassFunction(Protocol):
    def __call__(
        self, input: Tensor, target: Tensor, *, weight: Tensor | None, ignore_index: int, reduction: str
    ) -> Tensor: ...


class OverClasses(nn.Module, LossModule):
    """Loss computed by a torch function that expects the classes in dimension 1.

    Its `count` is the number by which torch's reduction "mean" divides: for class numbers, the sum of the class weights
    of the items that are not ignored; for probabilities, the number of items. With a mask, each item counts in
    proportion to its mask value.
    """

    class_weights: Tensor | None

    def __init__(
        self,
        function: ClassFunction,
        shape: tuple[int, ...],
        axis: int,
        *,
        soft: bool,
        ignore_index: int | None,
        class_weights: tuple[float, ...] | None,
        masked: bool,
    ) -> None:
        """Store the settings. `shape`: shape of the scores of one row. `axis`: the class dimension in `shape`.
        `soft`: whether targets are probabilities. `ignore_index`: class number of items that do not count.
        `masked`: whether the loss gets a mask.
        """
        super().__init__()
        self.function = function
        self.axis, self.rank, self.num_classes, self.soft = axis, len(shape), shape[axis], soft
        self.num_items = prod(shape) // shape[axis]
        self.ignore_index = ignore_index
        weights = None if class_weights is None else torch.tensor(class_weights, dtype=torch.float64)
        self.register_buffer("class_weights", weights, persistent=False)
        varies = masked or (not soft and (ignore_index is not None or weights is not None))
        self.items_per_row = None if varies else float(self.num_items)

    def divide(self, ranks: TensorRanks) -> None:
        """Make this module expect only the scores of this rank's classes, not of all classes. The classes must be the
        last dimension of the scores.
        """
        assert isinstance(self.function, CrossEntropyFunction)
        self.function = DividedCrossEntropy(self.function.label_smoothing, self.num_classes, ranks)
        self.num_classes //= ranks.size

    def sum(self, input: Tensor, target: Tensor | None, mask: Tensor | None, row_weight: Tensor | None) -> Tensor:
        assert target is not None
        x = upcast_half(input)
        y = target.to(x.dtype if self.soft else torch.int64)
        if mask is not None:
            x, y = self._without_masked(x, y, mask)
        weight = item_weight(mask, row_weight, self.rank, x.dtype)
        if weight is not None:
            weight = weight.expand(self._item_shape(x))
        x, y, weight = self._classes_at_1(x, y, weight)
        class_weights = None if self.class_weights is None else self.class_weights.to(x.dtype)
        ignored = NOTHING_IGNORED if self.ignore_index is None else self.ignore_index
        reduction = "sum" if weight is None else "none"
        value = self.function(x, y, weight=class_weights, ignore_index=ignored, reduction=reduction)
        return value if weight is None else (value * weight).sum()

    def items(self, input: Tensor, target: Tensor, mask: Tensor | None) -> Tensor:
        """Return the loss of each item, (B, *S), for targets that are class numbers. For an item whose mask is 0 the
        number has no meaning: it is finite, and its gradient is 0.
        """
        x, y = upcast_half(input), target.to(torch.int64)
        if mask is not None:
            x, y = self._without_masked(x, y, mask)
        shape = y.shape
        x, y, _ = self._classes_at_1(x, y, None)
        class_weights = None if self.class_weights is None else self.class_weights.to(x.dtype)
        ignored = NOTHING_IGNORED if self.ignore_index is None else self.ignore_index
        return self.function(x, y, weight=class_weights, ignore_index=ignored, reduction="none").view(shape)

    def count(self, target: Tensor | None, mask: Tensor | None, row_weight: Tensor | None, rows: int) -> Tensor:
        if self.soft or (self.ignore_index is None and self.class_weights is None):
            return count_items(mask, row_weight, rows, self.num_items)
        assert target is not None
        target = target.to(torch.int64)
        counted = None if mask is None else mask != 0
        if self.ignore_index is not None:
            kept = target != self.ignore_index
            counted = kept if counted is None else counted & kept
        if self.class_weights is None:
            assert counted is not None
            weight = counted.to(torch.float64)
        else:
            at = target if counted is None else torch.where(counted, target, 0)  # an ignored target may be out of range
            weight = self.class_weights[at]
            weight = weight if counted is None else weight * counted
        rest = item_weight(mask, row_weight, target.ndim, torch.float64)
        return weight.sum() if rest is None else (weight * rest).sum()

    def _without_masked(self, x: Tensor, y: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores `x` and targets `y` with 0 for the items whose mask is 0. The scores of such an item may be
        nan, and its target may be out of range.
        """
        keep = mask if mask.dtype == torch.bool else mask != 0
        keep_classes = keep.unsqueeze(self.axis + 1)
        return torch.where(keep_classes, x, 0), torch.where(keep_classes if self.soft else keep, y, 0)

    def _item_shape(self, x: Tensor) -> tuple[int, ...]:
        """Return the shape of the items, (B, *S): the shape of the scores without the class dimension."""
        return (*x.shape[: self.axis + 1], *x.shape[self.axis + 2 :])

    def _classes_at_1(self, x: Tensor, y: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return scores `x`, targets `y` and weights with the classes in dimension 1, as torch expects. If the classes
        are the last dimension, all other dimensions are flattened to one. In deterministic runs they are always
        flattened, because CUDA's kernel for scores with spatial dimensions, `nll_loss2d`, is not deterministic."""
        if self.rank > 1 and (self.axis == self.rank - 1 or torch.are_deterministic_algorithms_enabled()):
            x = x.movedim(self.axis + 1, -1).reshape(-1, self.num_classes)
            y = y.movedim(self.axis + 1, -1).reshape(-1, self.num_classes) if self.soft else y.reshape(-1)
            return x, y, None if weight is None else weight.reshape(-1)
        if self.axis == 0:
            return x, y, weight
        return x.movedim(self.axis + 1, 1), y.movedim(self.axis + 1, 1) if self.soft else y, weight


@dataclass(frozen=True, slots=True)
class DividedCrossEntropy:
    """Cross entropy of C classes that are divided over the `size` ranks of `ranks`. Each rank has the scores of its own
    classes, (N, C / size). The result is the same on all ranks. Scores are not gathered: the ranks exchange only
    tensors of N numbers, as in Shoeybi et al., Megatron-LM, 2019.
    """

    label_smoothing: float
    num_classes: int
    ranks: TensorRanks

    def __call__(
        self, input: Tensor, target: Tensor, *, weight: Tensor | None, ignore_index: int, reduction: str
    ) -> Tensor:
        ranks, width = self.ranks, input.shape[1]
        highest = ranks.max(input.amax(1))
        shifted = input - highest.unsqueeze(1)
        log_total = ranks.add(shifted.exp().sum(1)).log()
        is_counted = target != ignore_index
        place = target - ranks.index * width
        is_here = (place >= 0) & (place < width) & is_counted
        at = torch.where(is_here, place, 0).unsqueeze(1)
        own = ranks.add(torch.where(is_here, shifted.gather(1, at).squeeze(1), 0))
        items = log_total - own
        weight_of_item = None if weight is None else weight[torch.where(is_counted, target, 0)]
        items = items if weight_of_item is None else items * weight_of_item
        if self.label_smoothing:
            here = None if weight is None else weight[ranks.index * width : (ranks.index + 1) * width]
            total = self.num_classes if weight is None else weight.sum()
            spread = log_total * total - ranks.add(shifted.sum(1) if here is None else shifted @ here)
            items = (1 - self.label_smoothing) * items + self.label_smoothing / self.num_classes * spread
        items = torch.where(is_counted, items, 0)
        return items.sum() if reduction == "sum" else items


class OfItems(OverClasses):
    """Loss over classes whose input is not scores, but the loss of each item, (B, *S), as a `ChunkedHead` computes it.
    `sum` adds up these losses, weighted by the mask and the row weights."""

    def sum(self, input: Tensor, target: Tensor | None, mask: Tensor | None, row_weight: Tensor | None) -> Tensor:
        weight = item_weight(mask, row_weight, input.dim(), input.dtype)
        return input.sum() if weight is None else (input * weight).sum()
