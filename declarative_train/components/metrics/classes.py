"""Metrics of classification: ratios of counts of correct and wrong predictions, and areas under curves over all
thresholds."""

from __future__ import annotations

from abc import ABC
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from declarative_train.components.component import Metric, MetricInputs, MetricModule, ShapeError
from declarative_train.components.losses.shape_checks import (
    class_axis,
    classes,
    elementwise,
    needs_mask_shape,
    needs_target,
)
from declarative_train.core.tensor_spec import TensorSpec

if TYPE_CHECKING:
    import numpy as np
    import torch

    from declarative_train.components.metrics.modules.items import ClassItems, YesNoItems


Task = Literal["binary", "multiclass", "multilabel"]


def task_of(given: Task | None, edges: MetricInputs) -> Task:
    """Return the task of a metric: `given` or, if it is None, the task that follows from the shapes of input and
    target.

    multiclass  the input has one dimension more than the target, the classes
    multilabel  both are (B, K) with K > 1 labels
    binary      otherwise"""
    if given is not None:
        return given
    shape = edges.input.shape
    if edges.target is None or shape != edges.target.shape:
        return "multiclass"
    return "multilabel" if len(shape) == 1 and shape[0] > 1 else "binary"


def fits_task(type: str, task: Task, edges: MetricInputs, *, needs_bool_mask: bool = False) -> ShapeError | None:
    """Check that input, target and mask have the shapes and dtypes that `task` needs. Return a ShapeError, or None if
    they do. `type`: type of the metric, for the message. `needs_bool_mask`: the metric cannot weight items, so the mask
    must be bool.
    """
    target, mask = edges.target, edges.mask
    if (shape_error := needs_target(type, target)) is not None or target is None:
        return shape_error
    if needs_bool_mask and mask is not None and mask.dtype != "bool":
        message = f"`{type}` cannot weight items, but the mask is {mask.dtype}: a weight for each item"
        hint = "give the metric a `mask` of its own: a comparison, such as `weight > 0`, is bool"
        return ShapeError(message, port="mask", help=hint)
    if task == "multilabel" and not edges.input.shape:
        message = f"`{type}` of several labels needs a score for each of them, but the input has one number per sample"
        return ShapeError(message, port="input", help="omit `task`, or set the node's outputs to the number of labels")
    if task != "multiclass":
        return elementwise(type, edges.input, target, mask) or _yes_or_no(type, target)
    shape_error = classes(type, edges.input, target, edges.class_dim, soft=True, ignore_index=edges.ignore_index)
    if shape_error is not None and not shape_error.is_warning:  # for targets out of range the loss has warned already
        return shape_error
    axis = class_axis(edges.input.shape, edges.class_dim)
    assert axis is not None
    return needs_mask_shape(type, mask, edges.input.shape[:axis] + edges.input.shape[axis + 1 :])


def _yes_or_no(type: str, target: TensorSpec) -> ShapeError | None:
    if target.is_floating or target.num_values is None or target.num_values <= 2:
        return None
    return ShapeError(
        f"`{type}` is binary if input and target have the same shape, but the target's values go from 0 to "
        f"{target.num_values - 1}",
        port="target",
        help="the input needs a dimension for the classes",
    )


def idle_average(metric: Counted | Ranked, edges: MetricInputs) -> ShapeError | None:
    """Return a warning if the recipe sets `average` for a binary task, else None. A binary task has only one result, so
    there is nothing to average.
    """
    if "average" not in metric.model_fields_set or task_of(metric.task, edges) != "binary":
        return None
    message = f"`average` has no effect: `{metric.type}` is binary here, and counts all elements together"
    several = "remove it" + (", or add `task: multilabel`" if edges.input.shape else "")
    return ShapeError(message, field="average", help=several, is_warning=True)


def items_of(task: Task | None, edges: MetricInputs) -> tuple[ClassItems | YesNoItems, int]:
    """Return (items, number). `items`: function that turns scores and targets into the items that a metric counts.
    `number`: number of classes or labels, 1 if the task is binary. With `task` None, `task_of` derives the task from
    the shapes."""
    from declarative_train.components.metrics.modules.items import ClassItems, YesNoItems

    found = task_of(task, edges)
    if found == "binary":
        return YesNoItems(None, edges.ignore_index), 1
    axis = class_axis(edges.input.shape, edges.class_dim)
    assert axis is not None
    made = ClassItems if found == "multiclass" else YesNoItems
    return made(axis, edges.ignore_index), edges.input.shape[axis]


def probabilities_at_zero(metric: Metric, threshold: float, task: Task, edges: MetricInputs) -> ShapeError | None:
    """Return a warning if every possible score is at least `threshold`, so that almost all predictions are positive;
    otherwise None. The usual cause is a threshold of 0, the default, for scores that are probabilities."""
    interval = edges.input.interval
    if task == "multiclass" or interval is None or interval[0] < threshold or interval == (threshold, threshold):
        return None
    message = f"`{metric.type}` counts scores above {threshold:g} as positive, and the input is never below it"
    return ShapeError(message, port="input", help="set `threshold: 0.5`, or use logits", is_warning=True)


class Counted(Metric, ABC):
    """Base class of metrics that are ratios of counts. Each computes its ratio by the function in `modules/items.py`
    whose name is the `type` of the metric.
    """

    about: ClassVar[str] = "classes"

    average: Literal["macro", "micro", "weighted"] = "macro"
    """`macro`: mean over the classes that occur, or over all labels; `micro`: the ratio of the counts of all classes
    or labels together; `weighted`: mean weighted by the number of items of the class, or of positives of the label.
    """
    threshold: float = 0.0
    """Scores above it are positive: use 0 for logits, 0.5 for probabilities. Not used if the task is multiclass."""
    task: Task | None = None
    """`binary`: each element is positive or negative; `multilabel`: the same, counted for each label along the last
    dimension; `multiclass`: one class of several. Default: multilabel if input and target are (B, K), binary for other
    equal shapes, else multiclass.
    """

    def check(self, edges: MetricInputs) -> ShapeError | None:
        task = task_of(self.task, edges)
        shape_error = fits_task(self.type, task, edges) or idle_average(self, edges)
        return shape_error or probabilities_at_zero(self, self.threshold, task, edges)

    def build(self, edges: MetricInputs, device: torch.device) -> MetricModule:
        from declarative_train.components.metrics.modules import items as modules

        items, num_columns = items_of(self.task, edges)
        threshold = self.threshold if isinstance(items, modules.YesNoItems) else None
        return modules.FromCounts(getattr(modules, self.type), items, threshold, num_columns, self.average, device)


class PrecisionMetric(Counted):
    """Precision: of the items that are predicted as a class, the share that belongs to the class.

    With the task `binary` it is the precision of the positives. With `multilabel` or `multiclass`, `average` combines
    the precisions of the labels or classes."""

    type: Literal["precision"] = "precision"


class Recall(Counted):
    """Recall: of the items that belong to a class, the share that is predicted as the class.

    With the task `binary` it is the recall of the positives. With `multilabel` or `multiclass`, `average` combines the
    recalls of the labels or classes."""

    type: Literal["recall"] = "recall"


class F1(Counted):
    """F1 score: the harmonic mean of precision and recall.

    With the task `binary` it is the F1 score of the positives. With `multilabel` or `multiclass`, `average` combines
    the F1 scores of the labels or classes."""

    type: Literal["f1"] = "f1"


class Iou(Counted):
    """Intersection over union (IoU): of the items that are predicted as a class or belong to it, the share that do
    both. With `average: macro` it is the mean IoU of segmentation.

    With the task `binary` it is the IoU of the positives. With `multilabel` or `multiclass`, `average` combines the
    IoUs of the labels or classes."""

    type: Literal["iou"] = "iou"


class Ranked(Metric, ABC):
    """Base class of metrics that depend only on the order of the scores. Each is computed by the function in
    `modules/items.py` whose name is the `type` of the metric.
    """

    about: ClassVar[str] = "classes"

    average: Literal["macro", "micro", "weighted"] = "macro"
    """`macro`: mean over the classes or labels with both positives and negatives; `micro`: all their scores together;
    `weighted`: mean weighted by the number of items of the class, or of positives of the label.
    """
    task: Task | None = None
    """`binary`: each element is positive or negative; `multilabel`: the same, counted for each label along the last
    dimension; `multiclass`: one class of several. Default: multilabel if input and target are (B, K), binary for other
    equal shapes, else multiclass.
    """

    def check(self, edges: MetricInputs) -> ShapeError | None:
        task = task_of(self.task, edges)
        return fits_task(self.type, task, edges, needs_bool_mask=True) or idle_average(self, edges)

    def is_undefined(self, target: np.ndarray[Any, Any]) -> bool:
        """Return whether the metric is undefined for a set of samples, because there is no positive to compare with a
        negative: all targets are equal or, with K labels, the targets of each label are equal. With `average: micro`
        return False. `target`: the targets of the set, (N, *S); with K labels (N, K)."""
        if self.average == "micro":
            return False
        if target.ndim == 2 and self.task not in ("binary", "multiclass"):
            return bool((target == target[:1]).all())
        return bool((target == target.flat[0]).all())

    def build(self, edges: MetricInputs, device: torch.device) -> MetricModule:
        from declarative_train.components.metrics.modules import items as modules

        return modules.OfRanking(getattr(modules, self.type), *items_of(self.task, edges), self.average, device)


class Auroc(Ranked):
    """Area under the ROC curve: of all pairs of a positive and a negative item, the share in which the positive item
    has the higher score.

    With the task `multilabel` it is computed for each label. With `multiclass` it is computed for each class: the items
    of the class are the positives, all other items the negatives. `average` combines these results. They are exact,
    because all scores are stored until the end of the evaluation.
    """

    type: Literal["auroc"] = "auroc"


class AveragePrecision(Ranked):
    """Average precision: for each positive, take the share of positives among the items that score at least as high;
    the metric is the mean of these shares.

    With the task `multilabel` it is computed for each label. With `multiclass` it is computed for each class: the items
    of the class are the positives, all other items the negatives. `average` combines these results. They are exact,
    because all scores are stored until the end of the evaluation.
    """

    type: Literal["average_precision"] = "average_precision"
