"""Precision, recall and what joins them: ratios of counts of right and wrong answers."""

from __future__ import annotations

from abc import ABC
from typing import TYPE_CHECKING, ClassVar, Literal

from declarative_train.components.component import Judged, Metric, MetricModule, Misfit
from declarative_train.components.losses.fit import class_axis
from declarative_train.components.metrics.task import Task, fits_task, task_of

if TYPE_CHECKING:
    import torch


class Counted(Metric, ABC):
    """What the three have in common; `modules/counts.py` has the ratio of each under its name."""

    about: ClassVar[str] = "classes"

    average: Literal["macro", "micro", "weighted"] = "macro"
    """Of classes: the mean over those that occur, over all items at once, or the mean weighted by their items."""
    threshold: float = 0.0
    """A score above it is a yes: 0 for logits, 0.5 for probabilities. Not for classes."""
    task: Task | None = None
    """`binary` or `multiclass`; decided by the shapes where left out."""

    def check(self, edges: Judged) -> Misfit | None:
        return fits_task(self.type, task_of(self.task, edges), edges)

    def build(self, edges: Judged, device: torch.device) -> MetricModule:
        from declarative_train.components.metrics.modules import counts
        from declarative_train.components.metrics.modules.items import ClassItems, YesNoItems

        ratio = getattr(counts, self.type)
        if task_of(self.task, edges) == "binary":
            return counts.FromCounts(ratio, YesNoItems(edges.ignore_index), self.threshold, 1, "micro", device)
        axis = class_axis(edges.input.shape, edges.class_dim)
        assert axis is not None
        items = ClassItems(axis, edges.ignore_index)
        return counts.FromCounts(ratio, items, None, edges.input.shape[axis], self.average, device)


class Precision(Counted):
    """The part of the items said to be of a class that are.

    An input of the target's shape is scores of yes and no, whose yes counts; otherwise its class dimension has a score
    for each class.
    """

    type: Literal["precision"] = "precision"


class Recall(Counted):
    """The part of a class's items that were found.

    An input of the target's shape is scores of yes and no, whose yes counts; otherwise its class dimension has a score
    for each class.
    """

    type: Literal["recall"] = "recall"


class F1(Counted):
    """The harmonic mean of precision and recall.

    An input of the target's shape is scores of yes and no, whose yes counts; otherwise its class dimension has a score
    for each class.
    """

    type: Literal["f1"] = "f1"
