"""Perplexity."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from declarative_train.components.component import Judged, Metric, MetricModule, Misfit
from declarative_train.components.losses.fit import class_axis
from declarative_train.components.metrics.task import fits_task

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

    def check(self, edges: Judged) -> Misfit | None:
        return fits_task(self.type, "multiclass", edges)

    def build(self, edges: Judged, device: torch.device) -> MetricModule:
        from declarative_train.components.metrics.modules.items import ClassItems
        from declarative_train.components.metrics.modules.means import MeanOfItems, Surprises

        axis = class_axis(edges.input.shape, edges.class_dim)
        assert axis is not None
        return MeanOfItems(Surprises(ClassItems(axis, edges.ignore_index)), device, lambda mean: mean.exp())
