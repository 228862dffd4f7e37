"""Metrics of classes: ratios of counts of right and wrong answers, and areas under curves over all thresholds."""

from __future__ import annotations

from abc import ABC
from typing import TYPE_CHECKING, ClassVar, Literal

from declarative_train.components.component import Judged, Metric, MetricModule, Misfit
from declarative_train.components.losses.fit import class_axis, classes, elementwise, needs_mask_shape, needs_target
from declarative_train.terms.tensor_spec import TensorSpec

if TYPE_CHECKING:
    import torch


Task = Literal["binary", "multiclass"]


def task_of(given: Task | None, edges: Judged) -> Task:
    """Input and target of one shape are scores and answers, element by element; otherwise one dimension of the input
    is the classes."""
    if given is not None:
        return given
    same = edges.target is not None and edges.input.shape == edges.target.shape
    return "binary" if same else "multiclass"


def fits_task(type: str, task: Task, edges: Judged, *, needs_bool_mask: bool = False) -> Misfit | None:
    """The sentence for edges that are not what the task takes."""
    target, mask = edges.target, edges.mask
    if (misfit := needs_target(type, target)) is not None or target is None:
        return misfit
    if needs_bool_mask and mask is not None and mask.dtype != "bool":
        message = f"`{type}` takes items or leaves them, but the mask is {mask.dtype}, a weight for each"
        hint = "give the metric a `mask` of its own: a comparison, such as `weight > 0`, is bool"
        return Misfit(message, port="mask", help=hint)
    if task == "binary":
        return elementwise(type, edges.input, target, mask) or _yes_or_no(type, target)
    misfit = classes(type, edges.input, target, edges.class_dim, soft=True, ignore_index=edges.ignore_index)
    if misfit is not None and not misfit.is_warning:  # of scores without a class the loss has warned
        return misfit
    axis = class_axis(edges.input.shape, edges.class_dim)
    assert axis is not None
    return needs_mask_shape(type, mask, edges.input.shape[:axis] + edges.input.shape[axis + 1 :])


def _yes_or_no(type: str, target: TensorSpec) -> Misfit | None:
    if target.is_floating or target.num_values is None or target.num_values <= 2:
        return None
    return Misfit(
        f"`{type}` of an input and a target of one shape is about yes and no, but the target's values go from 0 to "
        f"{target.num_values - 1}",
        port="target",
        help="give the input a dimension for the classes",
    )


class Counted(Metric, ABC):
    """What they have in common; `modules/items.py` has the ratio of each under its name."""

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
        from declarative_train.components.metrics.modules import items as modules

        ratio = getattr(modules, self.type)
        if task_of(self.task, edges) == "binary":
            return modules.FromCounts(ratio, modules.YesNoItems(edges.ignore_index), self.threshold, 1, "micro", device)
        axis = class_axis(edges.input.shape, edges.class_dim)
        assert axis is not None
        items = modules.ClassItems(axis, edges.ignore_index)
        return modules.FromCounts(ratio, items, None, edges.input.shape[axis], self.average, device)


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


class Iou(Counted):
    """Intersection over union: of the items said to be of a class or that are, the part that is both. `macro` is the
    mean IoU of segmentation.

    An input of the target's shape is scores of yes and no, whose yes counts; otherwise its class dimension has a score
    for each class.
    """

    type: Literal["iou"] = "iou"


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

        from declarative_train.components.metrics.modules.items import ClassItems, OfRanking, YesNoItems

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
