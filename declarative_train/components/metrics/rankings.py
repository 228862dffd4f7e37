"""Ranking metrics, computed from the labels of a row sorted by score, as means over rows. Also the Matthews correlation
coefficient.
"""

from __future__ import annotations

from abc import ABC
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from declarative_train.components.component import Metric, MetricInputs, MetricModule, ShapeError
from declarative_train.components.losses.shape_checks import (
    needs_float,
    needs_mask_shape,
    needs_same_shape,
    needs_target,
)
from declarative_train.components.metrics.classes import Task, fits_task, items_of, probabilities_at_zero, task_of
from declarative_train.core.tensor_spec import TensorSpec

if TYPE_CHECKING:
    import torch


class RankedRows(Metric, ABC):
    """Base class of metrics that are means over rows. Each computes the value of a row by the function in
    `modules/rankings.py` whose name is the `type` of the metric.
    """

    about: ClassVar[str] = "classes"
    is_mean: ClassVar[bool] = True
    is_graded: ClassVar[bool] = False

    def check(self, edges: MetricInputs) -> ShapeError | None:
        target = edges.target
        if (shape_error := needs_target(self.type, target)) is not None or target is None:
            return shape_error
        if len(edges.input.shape) != 1 or edges.input.shape[0] < 2:
            message = f"`{self.type}` ranks the labels of a row, but the input is {edges.input}"
            return ShapeError(message, port="input", help="it needs a score for each label, (B, K)")
        if edges.ignore_index is not None:
            message = f"`{self.type}` ranks all labels of a row, but the loss ignores targets of {edges.ignore_index}"
            return ShapeError(message, port="target", help="give the metric a `mask` of rows, (B,), or remove it")
        return (
            needs_float(self.type, "input", edges.input)
            or needs_same_shape(self.type, edges.input, target)
            or (_not_negative(self.type, target) if self.is_graded else _of_two(self.type, target))
            or needs_mask_shape(self.type, edges.mask, ())
            or (None if self.is_graded else _finds_all(self.type, getattr(self, "k", None), edges.input.shape[0]))
        )

    def build(self, edges: MetricInputs, device: torch.device) -> MetricModule:
        from declarative_train.components.metrics.modules import rankings
        from declarative_train.components.metrics.modules.means import MeanOfItems

        return MeanOfItems(rankings.Rows(getattr(rankings, self.type), getattr(self, "k", None)), device)


def _of_two(type: str, target: TensorSpec) -> ShapeError | None:
    if target.num_values is None or target.num_values <= 2:
        return None
    return ShapeError(f"`{type}` needs answers, 0 or 1, but the target has {target.num_values} values", port="target")


def _not_negative(type: str, target: TensorSpec) -> ShapeError | None:
    if target.interval is None or target.interval[0] >= 0:
        return None
    message = f"`{type}` needs gains of 0 or more, but the target goes down to {target.interval[0]:g}"
    return ShapeError(message, port="target")


def _finds_all(type: str, k: int | None, num_labels: int) -> ShapeError | None:
    if k is None or k < num_labels:
        return None
    return ShapeError(f"`k: {k}` includes all {num_labels} labels", field="k", help=f"use less than {num_labels}")


class Lrap(RankedRows):
    """Label ranking average precision: the mean over rows of the average precision of a row's labels.

    For each positive label of a row, take the share of positives among the labels that score at least as high; the
    mean of these shares is the value of the row. A row without positives or without negatives counts as 1."""

    type: Literal["lrap"] = "lrap"


class CoverageError(RankedRows):
    """Number of labels that one must take, from the highest score down, until all positives of a row are among them;
    the mean over rows.

    The best value is the mean number of positives of a row.
    """

    higher_is_better: ClassVar[bool] = False

    type: Literal["coverage_error"] = "coverage_error"


class RankingLoss(RankedRows):
    """Share of the pairs of a positive and a negative label of a row that are wrongly ordered; the mean over rows. A
    pair is wrongly ordered if its negative label scores at least as high as its positive one.

    A row without a positive or without a negative counts as 0.
    """

    higher_is_better: ClassVar[bool] = False

    type: Literal["ranking_loss"] = "ranking_loss"


class RecallAtK(RankedRows):
    """Share of the positive labels of a row that are among its `k` highest scores; the mean over the rows with a
    positive label.

    If each row has one class, `accuracy` with `top_k` is the same metric."""

    type: Literal["recall_at_k"] = "recall_at_k"
    k: int = Field(10, ge=1)
    """Number of highest scores."""


class Ndcg(RankedRows):
    """Normalised discounted cumulative gain of the ranking of a row's labels by score; the mean over rows.

    The gains of the labels are the targets, 0 or more. Each gain is divided by log2(rank + 1), where the highest score
    has rank 1. The sum over the labels is divided by the sum for the best order. If labels have equal scores, each gets
    the mean of their factors 1 / log2(rank + 1). A row without gains counts as 0.
    """

    is_graded: ClassVar[bool] = True

    type: Literal["ndcg"] = "ndcg"
    k: int | None = Field(None, ge=1)
    """Number of highest scores that count; default: all."""


class Mcc(Metric):
    """Matthews correlation coefficient of predicted and actual classes: 1 is perfect, 0 is as good as chance, even for
    classes of different sizes.

    If input and target have the same shape, the input has binary scores, and all elements count together. Otherwise
    the class dimension of the input has a score for each class."""

    about: ClassVar[str] = "classes"

    type: Literal["mcc"] = "mcc"
    threshold: float = 0.0
    """Scores above it are positive: use 0 for logits, 0.5 for probabilities. Not used if the task is multiclass."""

    def check(self, edges: MetricInputs) -> ShapeError | None:
        task = self._task(edges)
        return fits_task(self.type, task, edges) or probabilities_at_zero(self, self.threshold, task, edges)

    def build(self, edges: MetricInputs, device: torch.device) -> MetricModule:
        from declarative_train.components.metrics.modules.items import YesNoItems
        from declarative_train.components.metrics.modules.rankings import Correlation

        items, num_classes = items_of(self._task(edges), edges)
        threshold = self.threshold if isinstance(items, YesNoItems) else None
        return Correlation(items, threshold, max(num_classes, 2), device)

    def _task(self, edges: MetricInputs) -> Task:
        return "multiclass" if task_of(None, edges) == "multiclass" else "binary"
