"""Relative error."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from declarative_train.components.component import Metric, MetricModule, Misfit
from declarative_train.components.losses.fit import elementwise
from declarative_train.terms.tensor_spec import TensorSpec

if TYPE_CHECKING:
    import torch


class Mape(Metric):
    """Mean absolute error relative to the target: 0.1 is 10%. Targets near 0 make it huge."""

    is_mean: ClassVar[bool] = True
    higher_is_better: ClassVar[bool] = False

    type: Literal["mape"] = "mape"

    def check(
        self,
        input: TensorSpec,
        target: TensorSpec | None,
        mask: TensorSpec | None,
        class_dim: int = -1,
        ignore_index: int | None = None,
    ) -> Misfit | None:
        return elementwise(self.type, input, target, mask)

    def build(
        self,
        input: TensorSpec,
        target: TensorSpec | None,
        device: torch.device,
        ignore_index: int | None,
        class_dim: int,
    ) -> MetricModule:
        from declarative_train.components.metrics.modules.means import Errors, MeanOfItems, relative

        return MeanOfItems(Errors(relative, ignore_index), device)
