"""Metrics of bounding boxes."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from declarative_train.components.component import Metric, MetricInputs, MetricModule, ShapeError
from declarative_train.packs.images.box_losses import Format, check_boxes

if TYPE_CHECKING:
    import torch


class BoxIou(Metric):
    """Mean intersection over union of predicted and target boxes (..., 4), compared pair by pair. A mask has one value
    for each pair."""

    about: ClassVar[str] = "numbers"
    is_mean: ClassVar[bool] = True

    type: Literal["box_iou"] = "box_iou"
    format: Format = "xyxy"
    """Format of the four numbers, in input and target: left, top, right, bottom; left, top, width, height; or center x,
    center y, width, height."""

    def check(self, edges: MetricInputs) -> ShapeError | None:
        return check_boxes(self.type, edges.input, edges.target, edges.mask)

    def build(self, edges: MetricInputs, device: torch.device) -> MetricModule:
        from declarative_train.components.metrics.modules.means import MeanOfItems
        from declarative_train.packs.images.modules.boxes import BoxOverlap

        return MeanOfItems(BoxOverlap(self.format), device)
