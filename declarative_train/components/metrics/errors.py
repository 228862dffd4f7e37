"""Metrics of regression: errors, and the coefficient of determination."""

from __future__ import annotations

from abc import ABC
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from declarative_train.components.component import Metric, MetricInputs, MetricModule, ShapeError
from declarative_train.components.losses.shape_checks import elementwise

if TYPE_CHECKING:
    import numpy as np
    import torch


class ElementwiseMetric(Metric, ABC):
    """Base class of metrics whose input and target have the same shape."""

    about: ClassVar[str] = "numbers"

    def check(self, edges: MetricInputs) -> ShapeError | None:
        return elementwise(self.type, edges.input, edges.target, edges.mask)


class MeanOfErrors(ElementwiseMetric, ABC):
    """Base class of metrics that are a mean over the elements of input and target."""

    is_mean: ClassVar[bool] = True
    has_unit: ClassVar[bool] = True
    higher_is_better: ClassVar[bool] = False
    error: ClassVar[Literal["absolute", "squared", "relative"]]
    is_root: ClassVar[bool] = False

    def build(self, edges: MetricInputs, device: torch.device) -> MetricModule:
        from declarative_train.components.metrics.modules import means

        errors = means.Errors(getattr(means, self.error), edges.ignore_index)
        if self.is_root:
            return means.MeanOfItems(errors, device, lambda mean: mean.sqrt())
        return means.MeanOfItems(errors, device)


class Mae(MeanOfErrors):
    """Mean absolute error over the elements of input and target. It is in the unit of the target's column: `scale` and
    `normalize` of the field are undone first.
    """

    type: Literal["mae"] = "mae"
    error: ClassVar[Literal["absolute", "squared", "relative"]] = "absolute"


class Mape(MeanOfErrors):
    """Mean absolute percentage error, as a fraction (0.1 is 10%): the mean of |input - target| / |target|.

    Both are in the unit of the target's column: `scale` and `normalize` of the field are undone first. Targets near 0
    make the metric very large.
    """

    type: Literal["mape"] = "mape"
    error: ClassVar[Literal["absolute", "squared", "relative"]] = "relative"


class MseMetric(MeanOfErrors):
    """Mean squared error over the elements of input and target. It is in the square of the unit of the target's column:
    `scale` and `normalize` of the field are undone first.
    """

    type: Literal["mse"] = "mse"
    error: ClassVar[Literal["absolute", "squared", "relative"]] = "squared"


class Rmse(MeanOfErrors):
    """Root of the mean squared error. It is in the unit of the target's column: `scale` and `normalize` of the field
    are undone first.
    """

    type: Literal["rmse"] = "rmse"
    error: ClassVar[Literal["absolute", "squared", "relative"]] = "squared"
    is_root: ClassVar[bool] = True


class R2(ElementwiseMetric):
    """Coefficient of determination (R squared): 1 is perfect, 0 is as good as always predicting the mean of the target.

    For several outputs (B, D), the result is the mean over the D outputs."""

    type: Literal["r2"] = "r2"

    def is_undefined(self, target: np.ndarray[Any, Any]) -> bool:
        """Return whether R squared is undefined for a set of samples. It is if one of the outputs has the same target
        in all rows: R squared divides by the variance of the target, which is then 0. `target`: the targets of the set,
        (N, *S).
        """
        return bool((target == target[:1]).reshape(len(target), -1).all(0).any())

    def build(self, edges: MetricInputs, device: torch.device) -> MetricModule:
        from declarative_train.components.metrics.modules.means import Determination

        return Determination(prod(edges.input.shape), edges.ignore_index, device)
