"""Regression losses, computed element by element from an input and a target of the same shape. `mean` has no target."""

from __future__ import annotations

from abc import ABC
from math import inf
from typing import ClassVar, Literal

from pydantic import Field

from declarative_train.components.component import Loss, LossModule, ShapeError
from declarative_train.components.losses.shape_checks import (
    elementwise,
    needs_float,
    needs_mask_shape,
    needs_no_target,
    needs_number,
    needs_values,
)
from declarative_train.core.tensor_spec import TensorSpec


class ElementwiseLoss(Loss, ABC):
    """Base class of losses whose input and target have the same shape. `function`: name of the function in
    `modules/elementwise.py` that computes the loss of each element. If the loss has keys such as `beta`, it names a
    class instead: the function is then an object of this class, created from the values of the keys."""

    about: ClassVar[str] = "numbers"
    per_item: ClassVar[bool] = True
    function: ClassVar[str]

    def check(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> ShapeError | None:
        return elementwise(self.type, input, target, mask)

    def build(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> LossModule:
        from declarative_train.components.losses.modules import elementwise as modules

        function = getattr(modules, self.function)
        fields = [getattr(self, name) for name in type(self).model_fields if name != "type"]
        return modules.ElementwiseModule(function(*fields) if fields else function, input.shape, mask is not None)


class L1(ElementwiseLoss):
    """Mean absolute error over the elements of input and target, which have the same shape."""

    function: ClassVar[str] = "l1"
    type: Literal["l1"] = "l1"


class MseLoss(ElementwiseLoss):
    """Mean squared error over the elements of input and target, which have the same shape."""

    function: ClassVar[str] = "mse"
    type: Literal["mse"] = "mse"


class SmoothL1(ElementwiseLoss):
    """Squared error / (2 `beta`) for errors up to `beta`, else absolute error - `beta` / 2."""

    function: ClassVar[str] = "SmoothL1Function"
    type: Literal["smooth_l1"] = "smooth_l1"
    beta: float = Field(1.0, ge=0)
    """Error at which the parabola changes to a line of slope 1; 0 gives `l1`."""


class Huber(ElementwiseLoss):
    """Half the squared error for errors up to `delta`, else `delta` times (absolute error - `delta` / 2)."""

    function: ClassVar[str] = "HuberFunction"
    type: Literal["huber"] = "huber"
    delta: float = Field(1.0, gt=0)
    """Error at which the parabola changes to a line."""


class PoissonNll(ElementwiseLoss):
    """Negative log likelihood of counts with a Poisson distribution. The input is the logarithm of the rate."""

    bounds: ClassVar[tuple[float, float]] = (-inf, inf)
    target_range: ClassVar[tuple[float, float]] = (0, inf)
    function: ClassVar[str] = "PoissonNllFunction"
    type: Literal["poisson_nll"] = "poisson_nll"
    log_input: bool = True
    """The input is the logarithm of the rate; if false, it is the rate."""
    full: bool = False
    """Add Stirling's approximation of log(target!), which does not depend on the input."""
    eps: float = Field(1e-8, gt=0)
    """Added to the rate before its logarithm (`log_input: false`)."""

    def check(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> ShapeError | None:
        if (shape_error := elementwise(self.type, input, target, mask)) is not None or target is None:
            return shape_error
        hint = "use `mse` or `l1` for other numbers"
        return needs_values(self.type, target, *self.target_range, "a count of 0 or more", hint)


class MeanLoss(Loss):
    """Mean of any tensor of the model, over its elements; it has no target."""

    bounds: ClassVar[tuple[float, float]] = (-inf, inf)
    needs_target: ClassVar[bool] = False
    per_item: ClassVar[bool] = True

    type: Literal["mean"] = "mean"

    def check(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> ShapeError | None:
        return (
            needs_no_target(self.type, target)
            or needs_float(self.type, "input", input)
            or needs_number(self.type, "input", input)
            or needs_mask_shape(self.type, mask, input.shape)
        )

    def build(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> LossModule:
        from declarative_train.components.losses.modules.elementwise import ElementwiseModule, return_input

        return ElementwiseModule(return_input, input.shape, mask is not None)
