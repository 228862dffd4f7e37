"""Element-wise nonlinearities, and the few that work along a dimension."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from declarative_train.components.component import Init, Layer, Misfit
from declarative_train.components.inits.constant import Constant
from declarative_train.components.layers.fit import (
    Inputs,
    dtype_of,
    needs_dimensions,
    needs_float,
    needs_parameter_dtype,
    resolve_dim,
)

if TYPE_CHECKING:
    from torch import nn


class Relu(Layer):
    """max(x, 0)."""

    type: Literal["relu"] = "relu"

    def check(self, inputs: Inputs) -> Misfit | None:
        return needs_float(self, inputs)

    def build(self, inputs: Inputs) -> nn.Module:
        from torch import nn

        return nn.ReLU()


class Relu6(Layer):
    """min(max(x, 0), 6)."""

    type: Literal["relu6"] = "relu6"

    def check(self, inputs: Inputs) -> Misfit | None:
        return needs_float(self, inputs)

    def build(self, inputs: Inputs) -> nn.Module:
        from torch import nn

        return nn.ReLU6()


class Gelu(Layer):
    """x times the normal distribution function of x."""

    type: Literal["gelu"] = "gelu"
    approximate: Literal["none", "tanh"] = "none"
    """`none` is exact; `tanh` is the faster formula that GPT-2 used."""

    def check(self, inputs: Inputs) -> Misfit | None:
        return needs_float(self, inputs)

    def build(self, inputs: Inputs) -> nn.Module:
        from torch import nn

        return nn.GELU(self.approximate)


class Silu(Layer):
    """x * sigmoid(x), also called swish."""

    type: Literal["silu"] = "silu"

    def check(self, inputs: Inputs) -> Misfit | None:
        return needs_float(self, inputs)

    def build(self, inputs: Inputs) -> nn.Module:
        from torch import nn

        return nn.SiLU()


class Mish(Layer):
    """x * tanh(softplus(x))."""

    type: Literal["mish"] = "mish"

    def check(self, inputs: Inputs) -> Misfit | None:
        return needs_float(self, inputs)

    def build(self, inputs: Inputs) -> nn.Module:
        from torch import nn

        return nn.Mish()


class Elu(Layer):
    """x where positive, alpha * (exp(x) - 1) elsewhere."""

    type: Literal["elu"] = "elu"
    alpha: float = Field(default=1.0, allow_inf_nan=False)
    """Negative of the lowest value."""

    def check(self, inputs: Inputs) -> Misfit | None:
        return needs_float(self, inputs)

    def build(self, inputs: Inputs) -> nn.Module:
        from torch import nn

        return nn.ELU(self.alpha)


class Celu(Layer):
    """max(x, 0) + min(alpha * (exp(x / alpha) - 1), 0)."""

    type: Literal["celu"] = "celu"
    alpha: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Negative of the lowest value."""

    def check(self, inputs: Inputs) -> Misfit | None:
        return needs_float(self, inputs)

    def build(self, inputs: Inputs) -> nn.Module:
        from torch import nn

        return nn.CELU(self.alpha)


class Selu(Layer):
    """A scaled `elu` that keeps mean 0 and variance 1 (use `alpha_dropout` beside it)."""

    type: Literal["selu"] = "selu"

    def check(self, inputs: Inputs) -> Misfit | None:
        return needs_float(self, inputs)

    def build(self, inputs: Inputs) -> nn.Module:
        from torch import nn

        return nn.SELU()


class LeakyRelu(Layer):
    """x where positive, negative_slope * x elsewhere."""

    type: Literal["leaky_relu"] = "leaky_relu"
    negative_slope: float = Field(default=0.01, allow_inf_nan=False)
    """Slope below 0."""

    def check(self, inputs: Inputs) -> Misfit | None:
        return needs_float(self, inputs)

    def build(self, inputs: Inputs) -> nn.Module:
        from torch import nn

        return nn.LeakyReLU(self.negative_slope)


class Tanh(Layer):
    """Hyperbolic tangent."""

    type: Literal["tanh"] = "tanh"

    def check(self, inputs: Inputs) -> Misfit | None:
        return needs_float(self, inputs)

    def build(self, inputs: Inputs) -> nn.Module:
        from torch import nn

        return nn.Tanh()


class Hardtanh(Layer):
    """x, kept between `low` and `high`."""

    type: Literal["hardtanh"] = "hardtanh"
    low: float = Field(default=-1.0, allow_inf_nan=False)
    """Smallest value."""
    high: float = Field(default=1.0, allow_inf_nan=False)
    """Largest value."""

    def check(self, inputs: Inputs) -> Misfit | None:
        if self.low >= self.high:
            return Misfit(f"`low: {self.low:g}` is not below `high: {self.high:g}`", field="low")
        return needs_float(self, inputs)

    def build(self, inputs: Inputs) -> nn.Module:
        from torch import nn

        return nn.Hardtanh(self.low, self.high)


class Tanhshrink(Layer):
    """x - tanh(x)."""

    type: Literal["tanhshrink"] = "tanhshrink"

    def check(self, inputs: Inputs) -> Misfit | None:
        return needs_float(self, inputs)

    def build(self, inputs: Inputs) -> nn.Module:
        from torch import nn

        return nn.Tanhshrink()


class Sigmoid(Layer):
    """1 / (1 + exp(-x))."""

    type: Literal["sigmoid"] = "sigmoid"

    def check(self, inputs: Inputs) -> Misfit | None:
        return needs_float(self, inputs)

    def build(self, inputs: Inputs) -> nn.Module:
        from torch import nn

        return nn.Sigmoid()


class LogSigmoid(Layer):
    """log(sigmoid(x)), computed safely."""

    type: Literal["log_sigmoid"] = "log_sigmoid"

    def check(self, inputs: Inputs) -> Misfit | None:
        return needs_float(self, inputs)

    def build(self, inputs: Inputs) -> nn.Module:
        from torch import nn

        return nn.LogSigmoid()


class Hardsigmoid(Layer):
    """min(max(x + 3, 0), 6) / 6."""

    type: Literal["hardsigmoid"] = "hardsigmoid"

    def check(self, inputs: Inputs) -> Misfit | None:
        return needs_float(self, inputs)

    def build(self, inputs: Inputs) -> nn.Module:
        from torch import nn

        return nn.Hardsigmoid()


class Hardswish(Layer):
    """x * min(max(x + 3, 0), 6) / 6."""

    type: Literal["hardswish"] = "hardswish"

    def check(self, inputs: Inputs) -> Misfit | None:
        return needs_float(self, inputs)

    def build(self, inputs: Inputs) -> nn.Module:
        from torch import nn

        return nn.Hardswish()


class Softplus(Layer):
    """log(1 + exp(beta * x)) / beta, a smooth relu."""

    type: Literal["softplus"] = "softplus"
    beta: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """How sharp the bend is."""

    def check(self, inputs: Inputs) -> Misfit | None:
        return needs_float(self, inputs)

    def build(self, inputs: Inputs) -> nn.Module:
        from torch import nn

        return nn.Softplus(self.beta)


class Softsign(Layer):
    """x / (1 + abs(x))."""

    type: Literal["softsign"] = "softsign"

    def check(self, inputs: Inputs) -> Misfit | None:
        return needs_float(self, inputs)

    def build(self, inputs: Inputs) -> nn.Module:
        from torch import nn

        return nn.Softsign()


class Softmax(Layer):
    """exp(x), scaled to sum to 1 along a dimension. Losses on logits do not want it."""

    type: Literal["softmax"] = "softmax"
    dim: int = -1
    """The dimension that sums to 1, in torch's numbers (the batch is 0)."""

    def check(self, inputs: Inputs) -> Misfit | None:
        return needs_float(self, inputs) or _along_misfit(self, self.dim, inputs)

    def build(self, inputs: Inputs) -> nn.Module:
        from torch import nn

        return nn.Softmax(self.dim)


class LogSoftmax(Layer):
    """log(softmax(x)), computed safely; what `nll` takes."""

    type: Literal["log_softmax"] = "log_softmax"
    dim: int = -1
    """The dimension that sums to 1, in torch's numbers (the batch is 0)."""

    def check(self, inputs: Inputs) -> Misfit | None:
        return needs_float(self, inputs) or _along_misfit(self, self.dim, inputs)

    def build(self, inputs: Inputs) -> nn.Module:
        from torch import nn

        return nn.LogSoftmax(self.dim)


class Glu(Layer):
    """Gated linear unit: the first half of a dimension times the sigmoid of the second."""

    type: Literal["glu"] = "glu"
    dim: int = -1
    """The dimension that is halved, in torch's numbers (the batch is 0)."""

    def check(self, inputs: Inputs) -> Misfit | None:
        if misfit := needs_float(self, inputs) or _along_misfit(self, self.dim, inputs):
            return misfit
        size = (0, *inputs["x"].shape)[self.dim]
        if size % 2:
            return Misfit(
                f"`glu` halves dimension {self.dim}, whose size {size} is odd: `x` is {inputs['x']}", port="x"
            )
        return None

    def build(self, inputs: Inputs) -> nn.Module:
        from torch import nn

        return nn.GLU(self.dim)


class Prelu(Layer):
    """x where positive, weight * x elsewhere, with a learned `weight`."""

    type: Literal["prelu"] = "prelu"
    per_channel: bool = False
    """A slope for each channel (dimension 1) instead of one for all."""

    def check(self, inputs: Inputs) -> Misfit | None:
        if self.per_channel and (misfit := needs_dimensions(self, inputs, "(B, C, ...)", 1)):
            return misfit
        return needs_parameter_dtype(self, inputs)

    def build(self, inputs: Inputs) -> nn.Module:
        from torch import nn

        slopes = inputs["x"].shape[0] if self.per_channel else 1
        return nn.PReLU(slopes, dtype=dtype_of(inputs["x"]))

    def init_of(self, parameter: str, inputs: Inputs) -> Init:
        return Constant(value=0.25) if parameter == "weight" else super().init_of(parameter, inputs)


def _along_misfit(layer: Layer, dim: int, inputs: Inputs) -> Misfit | None:
    if misfit := needs_dimensions(layer, inputs, "(B, ..., C)", 1):
        return misfit
    found = resolve_dim(layer, "dim", dim, len(inputs["x"].shape) + 1)
    return found if isinstance(found, Misfit) else None
