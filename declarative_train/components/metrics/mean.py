"""A tensor that is the metric already."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from declarative_train.components.component import Metric, MetricModule, Misfit
from declarative_train.components.losses.fit import needs_float, needs_mask_shape, needs_number
from declarative_train.terms.tensor_spec import TensorSpec

if TYPE_CHECKING:
    import torch


class Mean(Metric):
    """The mean of any tensor that the model computes, over its elements. A target, if there is one, is not used."""

    is_mean: ClassVar[bool] = True
    higher_is_better: ClassVar[bool] = False
    needs_target: ClassVar[bool] = False

    type: Literal["mean"] = "mean"

    def check(
        self,
        input: TensorSpec,
        target: TensorSpec | None,
        mask: TensorSpec | None,
        class_dim: int = -1,
        ignore_index: int | None = None,
    ) -> Misfit | None:
        return (
            needs_float(self.type, "input", input)
            or needs_number(self.type, "input", input)
            or needs_mask_shape(self.type, mask, input.shape)
        )

    def build(
        self,
        input: TensorSpec,
        target: TensorSpec | None,
        device: torch.device,
        ignore_index: int | None,
        class_dim: int,
    ) -> MetricModule:
        from declarative_train.components.metrics.modules.means import Itself, MeanOfItems

        return MeanOfItems(Itself(), device)
