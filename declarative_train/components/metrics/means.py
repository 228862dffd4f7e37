"""Metrics that are means over items: accuracy, perplexity, and the mean of any tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from declarative_train.components.component import Metric, MetricInputs, MetricModule, ShapeError
from declarative_train.components.losses.shape_checks import class_axis, needs_float, needs_mask_shape, needs_number
from declarative_train.components.metrics.classes import Task, fits_task, items_of, probabilities_at_zero, task_of
from declarative_train.core.amounts import format_count

if TYPE_CHECKING:
    import torch


class Accuracy(Metric):
    """Share of the items that are predicted correctly.

    If input and target have the same shape, the input has binary scores, and an item is correct if its score is on the
    right side of `threshold`. With several labels per row, each label is an item (the result is 1 - the Hamming loss).

    If the shapes differ, the class dimension of the input has a score for each class. An item is correct if its target
    is the class with the highest score."""

    about: ClassVar[str] = "classes"
    is_mean: ClassVar[bool] = True

    type: Literal["accuracy"] = "accuracy"
    top_k: int = Field(1, ge=1)
    """An item is correct if its class is among the k highest scores."""
    threshold: float = 0.0
    """Scores above it are positive: use 0 for logits, 0.5 for probabilities. Not used if the task is multiclass."""
    task: Task | None = None
    """`binary` or `multilabel`: positive or negative; `multiclass`: one class of several. Default: follows from the
    shapes.
    """

    def check(self, edges: MetricInputs) -> ShapeError | None:
        task = task_of(self.task, edges)
        shape_error = fits_task(self.type, task, edges)
        if shape_error is not None or self.top_k == 1:
            return shape_error or probabilities_at_zero(self, self.threshold, task, edges)
        if task != "multiclass":
            return ShapeError("`top_k` needs classes, but the input is binary", field="top_k")
        axis = class_axis(edges.input.shape, edges.class_dim)
        assert axis is not None
        if self.top_k >= edges.input.shape[axis]:
            message = (
                f"with `top_k: {self.top_k}` of {format_count(edges.input.shape[axis], 'class')}, every item is correct"
            )
            return ShapeError(message, field="top_k", help=f"use less than {edges.input.shape[axis]}")
        return None

    def build(self, edges: MetricInputs, device: torch.device) -> MetricModule:
        from declarative_train.components.metrics.modules.items import ClassItems
        from declarative_train.components.metrics.modules.means import BinaryHits, MeanOfItems, TopKHits

        items, _ = items_of(self.task, edges)
        if isinstance(items, ClassItems):
            return MeanOfItems(TopKHits(items, self.top_k), device)
        return MeanOfItems(BinaryHits(items, self.threshold), device)


class Perplexity(Metric):
    """Exponential of the mean cross entropy of logits: the number of equally likely classes that would be as uncertain
    as the predictions.

    Label smoothing and class weights of the loss are not used; ignored items are not counted."""

    about: ClassVar[str] = "classes"
    is_mean: ClassVar[bool] = True
    higher_is_better: ClassVar[bool] = False

    type: Literal["perplexity"] = "perplexity"

    def check(self, edges: MetricInputs) -> ShapeError | None:
        return fits_task(self.type, "multiclass", edges)

    def build(self, edges: MetricInputs, device: torch.device) -> MetricModule:
        from declarative_train.components.metrics.modules.items import ClassItems
        from declarative_train.components.metrics.modules.means import CrossEntropies, ItemLoss, MeanOfItems

        if edges.target is not None and edges.input.shape == edges.target.shape and not edges.target.is_floating:
            return MeanOfItems(ItemLoss(edges.ignore_index), device, lambda mean: mean.exp())  # computed in chunks
        axis = class_axis(edges.input.shape, edges.class_dim)
        assert axis is not None
        return MeanOfItems(CrossEntropies(ClassItems(axis, edges.ignore_index)), device, lambda mean: mean.exp())


class MeanMetric(Metric):
    """Mean of any tensor of the model, over its elements. It uses no target."""

    is_mean: ClassVar[bool] = True
    higher_is_better: ClassVar[bool] = False
    needs_target: ClassVar[bool] = False

    type: Literal["mean"] = "mean"

    def check(self, edges: MetricInputs) -> ShapeError | None:
        return (
            needs_float(self.type, "input", edges.input)
            or needs_number(self.type, "input", edges.input)
            or needs_mask_shape(self.type, edges.mask, edges.input.shape)
        )

    def build(self, edges: MetricInputs, device: torch.device) -> MetricModule:
        from declarative_train.components.metrics.modules.means import InputElements, MeanOfItems

        return MeanOfItems(InputElements(), device)
