"""How many are right."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from declarative_train.components.component import Judged, Metric, MetricModule, Misfit
from declarative_train.components.losses.fit import class_axis
from declarative_train.components.metrics.task import Task, fits_task, task_of
from declarative_train.terms.amounts import counted

if TYPE_CHECKING:
    import torch


class Accuracy(Metric):
    """The part of the items that are right: the class with the highest score, or yes where a score is above the
    threshold.

    An input of the target's shape is scores of yes and no, otherwise its class dimension has a score for each class.
    """

    about: ClassVar[str] = "classes"
    is_mean: ClassVar[bool] = True

    type: Literal["accuracy"] = "accuracy"
    top_k: int = Field(1, ge=1)
    """Right if the class is among the k highest scores."""
    threshold: float = 0.0
    """A score above it is a yes: 0 for logits, 0.5 for probabilities. Not for classes."""
    task: Task | None = None
    """`binary` or `multiclass`; told by the shapes where left out."""

    def check(self, edges: Judged) -> Misfit | None:
        task = task_of(self.task, edges)
        misfit = fits_task(self.type, task, edges)
        if misfit is not None or self.top_k == 1:
            return misfit
        if task == "binary":
            return Misfit("`top_k` is about classes, but the input is yes or no", field="top_k")
        axis = class_axis(edges.input.shape, edges.class_dim)
        assert axis is not None
        if self.top_k >= edges.input.shape[axis]:
            return Misfit(
                f"`top_k: {self.top_k}` of {counted(edges.input.shape[axis], 'class')} is always right",
                field="top_k",
                help=f"use less than {edges.input.shape[axis]}",
            )
        return None

    def build(self, edges: Judged, device: torch.device) -> MetricModule:
        from declarative_train.components.metrics.modules.items import ClassItems, YesNoItems
        from declarative_train.components.metrics.modules.means import Agreements, Hits, MeanOfItems

        if task_of(self.task, edges) == "binary":
            return MeanOfItems(Agreements(YesNoItems(edges.ignore_index), self.threshold), device)
        axis = class_axis(edges.input.shape, edges.class_dim)
        assert axis is not None
        return MeanOfItems(Hits(ClassItems(axis, edges.ignore_index), self.top_k), device)
