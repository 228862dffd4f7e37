"""Losses of bounding boxes, each of four numbers: box i of the input is compared with box i of the target."""

from __future__ import annotations

from typing import ClassVar, Literal

from declarative_train.components.component import Loss, LossModule, ShapeError
from declarative_train.components.losses.shape_checks import (
    needs_float,
    needs_mask_shape,
    needs_same_shape,
    needs_target,
)
from declarative_train.core.tensor_spec import TensorSpec

Format = Literal["xyxy", "xywh", "cxcywh"]


def check_boxes(type: str, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> ShapeError | None:
    """Check the tensors of a loss or metric of boxes, and return an error if they do not fit, otherwise None. `input`
    and `target` must be floating-point tensors of the same shape (..., 4). A mask must have a value for each box.
    `type`: type of the loss or metric, for the message."""
    if (shape_error := needs_target(type, target)) is not None or target is None:
        return shape_error
    if not input.shape or input.shape[-1] != 4:
        message = f"`{type}` compares boxes, four numbers in the last dimension, but the input is {input}"
        return ShapeError(message, port="input", help="set the outputs of the node before it to 4 for each box")
    return (
        needs_float(type, "input", input)
        or needs_float(type, "target", target)
        or needs_same_shape(type, input, target)
        or needs_mask_shape(type, mask, input.shape[:-1])
    )


class Giou(Loss):
    """1 - the generalized intersection over union of boxes, mean over the boxes, from 0 to 2: Rezatofighi et al.,
    https://arxiv.org/abs/1902.09630. A mask has a value for each box."""

    about: ClassVar[str] = "numbers"
    bounds: ClassVar[tuple[float, float]] = (0.0, 2.0)

    type: Literal["giou"] = "giou"
    format: Format = "xyxy"
    """Format of the four numbers, in input and target: left, top, right, bottom; left, top, width, height; or center x,
    center y, width, height. Corners may be in any order, and widths negative: the box is the one between them."""

    def check(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> ShapeError | None:
        return check_boxes(self.type, input, target, mask)

    def build(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> LossModule:
        from declarative_train.packs.images.modules.boxes import Generalized

        return Generalized(self.format, input.shape[:-1], mask is not None)
