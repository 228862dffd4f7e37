"""How many of those found are right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from declarative_train.components.component import Metric, MetricModule, Misfit
from declarative_train.components.losses.fit import class_axis
from declarative_train.components.metrics.task import Task, fits_task, task_of
from declarative_train.terms.tensor_spec import TensorSpec

if TYPE_CHECKING:
    import torch


class Precision(Metric):
    """The part of the items said to be of a class that are.

    An input of the target's shape is scores of yes and no, whose yes counts; otherwise its class dimension has a score
    for each class.
    """

    type: Literal["precision"] = "precision"
    average: Literal["macro", "micro", "weighted"] = "macro"
    """Of classes: the mean over those that occur, over all items at once, or the mean weighted by their items."""
    threshold: float = 0.0
    """A score above it is a yes: 0 for logits, 0.5 for probabilities. Not for classes."""
    task: Task | None = None
    """`binary` or `multiclass`; told by the shapes where left out."""

    def check(
        self,
        input: TensorSpec,
        target: TensorSpec | None,
        mask: TensorSpec | None,
        class_dim: int = -1,
        ignore_index: int | None = None,
    ) -> Misfit | None:
        task = task_of(self.task, input, target)
        return fits_task(self.type, task, input, target, mask, class_dim, ignore_index)

    def build(
        self,
        input: TensorSpec,
        target: TensorSpec | None,
        device: torch.device,
        ignore_index: int | None,
        class_dim: int,
    ) -> MetricModule:
        from declarative_train.components.metrics.modules.counts import FromCounts, precision
        from declarative_train.components.metrics.modules.items import ClassItems, YesNoItems

        if task_of(self.task, input, target) == "binary":
            return FromCounts(precision, YesNoItems(ignore_index), self.threshold, 1, "micro", device)
        axis = class_axis(input.shape, class_dim)
        assert axis is not None
        items = ClassItems(axis, ignore_index)
        return FromCounts(precision, items, None, input.shape[axis], self.average, device)
