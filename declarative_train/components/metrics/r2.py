"""The coefficient of determination."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Literal

from declarative_train.components.component import Metric, MetricModule, Misfit
from declarative_train.components.losses.fit import elementwise
from declarative_train.terms.tensor_spec import TensorSpec

if TYPE_CHECKING:
    import torch


class R2(Metric):
    """How much better than the mean of the target: 1 is perfect, 0 no better.

    Of several outputs (B, D) the mean of each one's.
    """

    type: Literal["r2"] = "r2"

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
        from declarative_train.components.metrics.modules.determination import Determination

        return Determination(prod(input.shape), ignore_index, device)
