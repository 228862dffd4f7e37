"""Activations: functions of each element. The usual ones, and what all have in common."""

from __future__ import annotations

from abc import ABC
from typing import ClassVar, Literal

from pydantic import Field

from declarative_train.components.component import Misfit
from declarative_train.components.layers.fit import Inputs, OfFields, needs_float


class Activation(OfFields, ABC):
    """Without parameters."""

    def check(self, inputs: Inputs) -> Misfit | None:
        return needs_float(self, inputs)


class Relu(Activation):
    """max(x, 0)."""

    module: ClassVar[str] = "nn.ReLU"
    type: Literal["relu"] = "relu"


class LeakyRelu(Activation):
    """x where positive, negative_slope * x elsewhere."""

    module: ClassVar[str] = "nn.LeakyReLU"
    type: Literal["leaky_relu"] = "leaky_relu"
    negative_slope: float = Field(default=0.01, allow_inf_nan=False)
    """Slope below 0."""


class Gelu(Activation):
    """x times the normal distribution function of x."""

    module: ClassVar[str] = "nn.GELU"
    type: Literal["gelu"] = "gelu"
    approximate: Literal["none", "tanh"] = "none"
    """`none` is exact; `tanh` is the faster formula that GPT-2 used."""


class Silu(Activation):
    """x * sigmoid(x), also called swish."""

    module: ClassVar[str] = "nn.SiLU"
    type: Literal["silu"] = "silu"


class Sigmoid(Activation):
    """1 / (1 + exp(-x))."""

    module: ClassVar[str] = "nn.Sigmoid"
    type: Literal["sigmoid"] = "sigmoid"


class Tanh(Activation):
    """Hyperbolic tangent."""

    module: ClassVar[str] = "nn.Tanh"
    type: Literal["tanh"] = "tanh"
