"""Areas under curves over all thresholds: how well scores rank a yes above a no."""

from __future__ import annotations

from abc import ABC
from typing import TYPE_CHECKING, ClassVar, Literal

from declarative_train.components.component import Judged, Metric, MetricModule, Misfit
from declarative_train.components.losses.fit import class_axis
from declarative_train.components.metrics.task import Task, fits_task, task_of

if TYPE_CHECKING:
    import torch


class Ranked(Metric, ABC):
    """What the two have in common; torchmetrics has the area of each under its name."""

    about: ClassVar[str] = "classes"

    average: Literal["macro", "weighted"] = "macro"
    """Of classes: the mean over those that occur, or the mean weighted by their items."""
    task: Task | None = None
    """`binary` or `multiclass`; decided by the shapes where left out."""

    def check(self, edges: Judged) -> Misfit | None:
        return fits_task(self.type, task_of(self.task, edges), edges, needs_bool_mask=True)

    def build(self, edges: Judged, device: torch.device) -> MetricModule:
        from torchmetrics.functional import classification

        from declarative_train.components.metrics.modules.items import ClassItems, YesNoItems
        from declarative_train.components.metrics.modules.ranking import OfRanking

        area = getattr(classification, f"binary_{self.type}")
        if task_of(self.task, edges) == "binary":
            return OfRanking(area, YesNoItems(edges.ignore_index), None, self.average, device)
        axis = class_axis(edges.input.shape, edges.class_dim)
        assert axis is not None
        items = ClassItems(axis, edges.ignore_index)
        return OfRanking(area, items, edges.input.shape[axis], self.average, device)


class Auroc(Ranked):
    """Area under the ROC curve: how often a yes scores higher than a no.

    An input of the target's shape is scores of yes and no; otherwise its class dimension has logits, and each class is
    taken against the rest. Exact: all scores are kept until the set is through.
    """

    type: Literal["auroc"] = "auroc"


class AveragePrecision(Ranked):
    """Average precision: the precision at every yes, from the highest score down, averaged.

    An input of the target's shape is scores of yes and no; otherwise its class dimension has logits, and each class is
    taken against the rest. Exact: all scores are kept until the set is through.
    """

    type: Literal["average_precision"] = "average_precision"
