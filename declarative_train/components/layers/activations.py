"""Activations: functions of each element."""

from __future__ import annotations

from abc import ABC
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from declarative_train.components.component import Init, Layer, ShapeError
from declarative_train.components.expressions.functions import default
from declarative_train.components.layers.default_inits import start
from declarative_train.components.layers.shape_checks import (
    FieldsLayer,
    FunctionLayer,
    Inputs,
    dtype_of,
    needs_along,
    needs_dimensions,
    needs_float,
    needs_parameter_dtype,
)
from declarative_train.core.cuts import CutKind, LayerCut

if TYPE_CHECKING:
    from torch import nn


class Activation(FieldsLayer, ABC):
    """Base class of activations without parameters."""

    def check(self, inputs: Inputs) -> ShapeError | None:
        return needs_float(self, inputs)

    def cut(self, kind: CutKind, inputs: Inputs, size: int) -> LayerCut | str | None:
        return LayerCut(kind, {}) if kind in ("features", "tokens") else None


class Relu(FunctionLayer, Activation):
    """max(x, 0)."""

    type: Literal["relu"] = "relu"

    def check(self, inputs: Inputs) -> ShapeError | None:
        if inputs["x"].dtype == "bool":
            return ShapeError("`relu` takes numbers, `x` is bool", port="x", help="write `float(x)` before it")
        return None


class LeakyRelu(FunctionLayer, Activation):
    """x where positive, negative_slope * x elsewhere."""

    type: Literal["leaky_relu"] = "leaky_relu"
    negative_slope: float = Field(default=default("leaky_relu", "negative_slope"), allow_inf_nan=False)
    """Slope below 0."""


class Gelu(FunctionLayer, Activation):
    """x times Phi(x), the distribution function of the standard normal distribution."""

    type: Literal["gelu"] = "gelu"
    approximate: Literal["none", "tanh"] = "none"
    """`none` is exact; `tanh` is the faster formula that GPT-2 used."""


class Silu(FunctionLayer, Activation):
    """x * sigmoid(x), also called swish."""

    type: Literal["silu"] = "silu"


class Sigmoid(FunctionLayer, Activation):
    """1 / (1 + exp(-x))."""

    type: Literal["sigmoid"] = "sigmoid"

    def check(self, inputs: Inputs) -> ShapeError | None:
        return None  # whole numbers and bools become floating-point numbers, as in torch


class Tanh(FunctionLayer, Activation):
    """Hyperbolic tangent."""

    type: Literal["tanh"] = "tanh"

    def check(self, inputs: Inputs) -> ShapeError | None:
        return None


class Relu6(Activation):
    """min(max(x, 0), 6)."""

    module: ClassVar[str] = "nn.ReLU6"
    type: Literal["relu6"] = "relu6"


class Elu(FunctionLayer, Activation):
    """x where positive, alpha * (exp(x) - 1) elsewhere."""

    type: Literal["elu"] = "elu"
    alpha: float = Field(default=default("elu", "alpha"), allow_inf_nan=False)
    """Negative of the lowest value."""


class Celu(Activation):
    """max(x, 0) + min(alpha * (exp(x / alpha) - 1), 0)."""

    module: ClassVar[str] = "nn.CELU"
    type: Literal["celu"] = "celu"
    alpha: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Negative of the lowest value."""


class Selu(Activation):
    """`elu` with a fixed `alpha`, times a fixed factor. Both numbers are chosen so that values keep mean 0 and variance
    1 from layer to layer. Use `alpha_dropout` with it."""

    module: ClassVar[str] = "nn.SELU"
    type: Literal["selu"] = "selu"


class Mish(FunctionLayer, Activation):
    """x * tanh(softplus(x))."""

    type: Literal["mish"] = "mish"


class Softplus(FunctionLayer, Activation):
    """log(1 + exp(beta * x)) / beta, a smooth relu."""

    type: Literal["softplus"] = "softplus"
    beta: float = Field(default=default("softplus", "beta"), gt=0, allow_inf_nan=False)
    """Sharpness of the bend at 0."""


class LogSigmoid(FunctionLayer, Activation):
    """log(sigmoid(x)), computed in a numerically stable way."""

    type: Literal["log_sigmoid"] = "log_sigmoid"


class Hardsigmoid(Activation):
    """min(max(x + 3, 0), 6) / 6."""

    module: ClassVar[str] = "nn.Hardsigmoid"
    type: Literal["hardsigmoid"] = "hardsigmoid"


class Hardswish(Activation):
    """x * min(max(x + 3, 0), 6) / 6."""

    module: ClassVar[str] = "nn.Hardswish"
    type: Literal["hardswish"] = "hardswish"


class Hardtanh(Activation):
    """x, clamped to the range from `low` to `high`."""

    module: ClassVar[str] = "nn.Hardtanh"
    type: Literal["hardtanh"] = "hardtanh"
    low: float = Field(default=-1.0, allow_inf_nan=False)
    """Smallest value."""
    high: float = Field(default=1.0, allow_inf_nan=False)
    """Largest value."""

    def check(self, inputs: Inputs) -> ShapeError | None:
        if self.low >= self.high:
            return ShapeError(f"`low: {self.low:g}` is not below `high: {self.high:g}`", field="low")
        return super().check(inputs)


class Tanhshrink(Activation):
    """x - tanh(x)."""

    module: ClassVar[str] = "nn.Tanhshrink"
    type: Literal["tanhshrink"] = "tanhshrink"


class Softsign(Activation):
    """x / (1 + abs(x))."""

    module: ClassVar[str] = "nn.Softsign"
    type: Literal["softsign"] = "softsign"


class AlongDimension(Activation, ABC):
    """Base class of softmax and log_softmax, which are computed along one dimension."""

    dim: int = default("softmax", "dim")
    """The dimension along which the softmax sums to 1, in torch's numbers (the batch is 0)."""

    def check(self, inputs: Inputs) -> ShapeError | None:
        return super().check(inputs) or needs_along(self, self.dim, inputs)

    def cut(self, kind: CutKind, inputs: Inputs, size: int) -> LayerCut | str | None:
        return None


class Softmax(FunctionLayer, AlongDimension):
    """exp(x), divided by its sum along a dimension. Do not put it before a loss that expects logits."""

    type: Literal["softmax"] = "softmax"


class LogSoftmax(FunctionLayer, AlongDimension):
    """log(softmax(x)), computed in a numerically stable way; the input of the loss `nll`."""

    type: Literal["log_softmax"] = "log_softmax"


class Glu(Activation):
    """Gated linear unit: splits a dimension into two halves, and returns the first half times the sigmoid of
    the second.
    """

    module: ClassVar[str] = "nn.GLU"
    type: Literal["glu"] = "glu"
    dim: int = -1
    """The dimension that is halved, in torch's numbers (the batch is 0)."""

    def check(self, inputs: Inputs) -> ShapeError | None:
        if shape_error := super().check(inputs) or needs_along(self, self.dim, inputs):
            return shape_error
        size = (0, *inputs["x"].shape)[self.dim]
        if size % 2:
            return ShapeError(
                f"`glu` halves dimension {self.dim}, whose size {size} is odd: `x` is {inputs['x']}", port="x"
            )
        return None


class Prelu(Layer):
    """x where positive, weight * x elsewhere, with a learned `weight`."""

    type: Literal["prelu"] = "prelu"
    per_channel: bool = False
    """A slope for each channel (dimension 1) instead of one for all."""

    def check(self, inputs: Inputs) -> ShapeError | None:
        if self.per_channel and (shape_error := needs_dimensions(self, inputs, "(B, C, ...)", 1)):
            return shape_error
        return needs_parameter_dtype(self, inputs)

    def build(self, inputs: Inputs) -> nn.Module:
        from torch import nn

        slopes = inputs["x"].shape[0] if self.per_channel else 1
        return nn.PReLU(slopes, dtype=dtype_of(inputs["x"]))

    def init_of(self, parameter: str, inputs: Inputs) -> Init:
        return start("constant", value=0.25) if parameter == "weight" else super().init_of(parameter, inputs)
