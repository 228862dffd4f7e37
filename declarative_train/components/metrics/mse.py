"""Squared error."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from declarative_train.components.component import Metric, MetricModule, Misfit
from declarative_train.components.losses.fit import elementwise
from declarative_train.terms.tensor_spec import TensorSpec

if TYPE_CHECKING:
    import torch


class Mse(Metric):
    """Mean squared error, over the elements of input and target."""

    is_mean: ClassVar[bool] = True
    higher_is_better: ClassVar[bool] = False

    type: Literal["mse"] = "mse"

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
        from declarative_train.components.metrics.modules.means import Errors, MeanOfItems, squared

        return MeanOfItems(Errors(squared, ignore_index), device)
