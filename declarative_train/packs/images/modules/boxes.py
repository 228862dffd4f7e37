"""Overlap of bounding boxes (..., 4), and the loss that is computed from it."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn

from declarative_train.components.component import LossModule
from declarative_train.components.losses.modules.elementwise import count_items, item_weight, upcast_half
from declarative_train.components.metrics.modules.items import weights

_EPS = 1e-7  # added to every divisor, as in torchvision


def corners(boxes: Tensor, format: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the left, top, right and bottom of boxes (..., 4), each of shape (...). `format`: what the four numbers of
    a box are, such as `xywh`. Left and right (or top and bottom) of a predicted box may be reversed. They are swapped
    then, because the negative area would lower the loss."""
    a, b, c, d = boxes.unbind(-1)
    if format == "xywh":
        c, d = a + c, b + d
    if format == "cxcywh":
        a, b, c, d = a - c / 2, b - d / 2, a + c / 2, b + d / 2
    return torch.minimum(a, c), torch.minimum(b, d), torch.maximum(a, c), torch.maximum(b, d)


def overlap(one: Tensor, other: Tensor, format: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return three areas, each (...), for pairs of boxes (..., 4): of the intersection of a pair, of its union, and of
    the smallest box around both. `format`: what the four numbers of a box are."""
    left, top, right, bottom = corners(one, format)
    left2, top2, right2, bottom2 = corners(other, format)
    wide = (torch.minimum(right, right2) - torch.maximum(left, left2)).clamp(min=0)
    tall = (torch.minimum(bottom, bottom2) - torch.maximum(top, top2)).clamp(min=0)
    both = wide * tall
    union = (right - left) * (bottom - top) + (right2 - left2) * (bottom2 - top2) - both
    around = (torch.maximum(right, right2) - torch.minimum(left, left2)) * (
        torch.maximum(bottom, bottom2) - torch.minimum(top, top2)
    )
    return both, union, around


def iou(one: Tensor, other: Tensor, format: str) -> Tensor:
    both, union, _ = overlap(one, other, format)
    return both / union.clamp(min=_EPS)


class Generalized(nn.Module, LossModule):
    """Loss module of generalized IoU. input, target: (B, *shape, 4); mask: (B, *shape). `count` returns the number of
    boxes, or the sum of the mask.

    Boxes with a mask of 0 do not affect the loss, even if they are nan.
    """

    def __init__(self, format: str, shape: tuple[int, ...], masked: bool) -> None:
        super().__init__()
        self.format = format
        self.num_items = prod(shape)
        self.items_per_row = None if masked else float(self.num_items)

    def sum(self, input: Tensor, target: Tensor | None, mask: Tensor | None, row_weight: Tensor | None) -> Tensor:
        assert target is not None
        x = upcast_half(input)
        y = target.to(x.dtype)
        if mask is not None:
            keep = (mask != 0).unsqueeze(-1)
            x, y = torch.where(keep, x, 0), torch.where(keep, y, 0)
        both, union, around = overlap(x, y, self.format)
        each = 1 - both / (union + _EPS) + (around - union) / (around + _EPS)
        weight = item_weight(mask, row_weight, each.ndim, x.dtype)
        return each.sum() if weight is None else (each * weight).sum()

    def count(self, target: Tensor | None, mask: Tensor | None, row_weight: Tensor | None, rows: int) -> Tensor:
        return count_items(mask, row_weight, rows, self.num_items)


class BoxOverlap:
    """Function for a metric. It returns the intersection over union (B, *S) of each box of the input and the
    corresponding box of the target, both (B, *S, 4)."""

    def __init__(self, format: str) -> None:
        self._format = format

    def __call__(
        self, input: Tensor, target: Tensor | None, mask: Tensor | None, row_weight: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        assert target is not None
        found = iou(upcast_half(input), upcast_half(target), self._format)
        return found, weights(found.shape, None, mask, row_weight)
