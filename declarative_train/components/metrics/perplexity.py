"""Perplexity."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from declarative_train.components.component import Metric, MetricModule, Misfit
from declarative_train.components.losses.fit import class_axis
from declarative_train.components.metrics.task import fits_task
from declarative_train.terms.tensor_spec import TensorSpec

if TYPE_CHECKING:
    import torch


class Perplexity(Metric):
    """The exponential of the mean cross entropy of logits: among how many equally likely classes the model wavers.

    Without the loss's label smoothing and class weights; ignored items do not count.
    """

    about: ClassVar[str] = "classes"
    is_mean: ClassVar[bool] = True
    higher_is_better: ClassVar[bool] = False

    type: Literal["perplexity"] = "perplexity"

    def check(
        self,
        input: TensorSpec,
        target: TensorSpec | None,
        mask: TensorSpec | None,
        class_dim: int = -1,
        ignore_index: int | None = None,
    ) -> Misfit | None:
        return fits_task(self.type, "multiclass", input, target, mask, class_dim, ignore_index)

    def build(
        self,
        input: TensorSpec,
        target: TensorSpec | None,
        device: torch.device,
        ignore_index: int | None,
        class_dim: int,
    ) -> MetricModule:
        from declarative_train.components.metrics.modules.items import ClassItems
        from declarative_train.components.metrics.modules.means import MeanOfItems, Surprises

        axis = class_axis(input.shape, class_dim)
        assert axis is not None
        return MeanOfItems(Surprises(ClassItems(axis, ignore_index)), device, lambda mean: mean.exp())
