"""A tensor that is the metric already."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from declarative_train.components.component import Judged, Metric, MetricModule, Misfit
from declarative_train.components.losses.fit import needs_float, needs_mask_shape, needs_number

if TYPE_CHECKING:
    import torch


class Mean(Metric):
    """The mean of any tensor that the model computes, over its elements. A target, if there is one, is not used."""

    is_mean: ClassVar[bool] = True
    higher_is_better: ClassVar[bool] = False
    needs_target: ClassVar[bool] = False

    type: Literal["mean"] = "mean"

    def check(self, edges: Judged) -> Misfit | None:
        return (
            needs_float(self.type, "input", edges.input)
            or needs_number(self.type, "input", edges.input)
            or needs_mask_shape(self.type, edges.mask, edges.input.shape)
        )

    def build(self, edges: Judged, device: torch.device) -> MetricModule:
        from declarative_train.components.metrics.modules.means import Itself, MeanOfItems

        return MeanOfItems(Itself(), device)
