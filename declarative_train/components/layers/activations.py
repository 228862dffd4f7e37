"""Activations: functions of each element. The usual ones, and what all have in common."""

from __future__ import annotations

from abc import ABC
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from declarative_train.components.component import Layer, Misfit
from declarative_train.components.layers.fit import Inputs, needs_float

if TYPE_CHECKING:
    from torch import nn


class Activation(Layer, ABC):
    """Without parameters. `torch_name`: its class in `torch.nn`, which takes the fields in their order."""

    torch_name: ClassVar[str]

    def check(self, inputs: Inputs) -> Misfit | None:
        return needs_float(self, inputs)

    def build(self, inputs: Inputs) -> nn.Module:
        from torch import nn

        fields = [getattr(self, name) for name in type(self).model_fields if name != "type"]
        made: nn.Module = getattr(nn, self.torch_name)(*fields)
        return made


class Relu(Activation):
    """max(x, 0)."""

    torch_name: ClassVar[str] = "ReLU"
    type: Literal["relu"] = "relu"


class LeakyRelu(Activation):
    """x where positive, negative_slope * x elsewhere."""

    torch_name: ClassVar[str] = "LeakyReLU"
    type: Literal["leaky_relu"] = "leaky_relu"
    negative_slope: float = Field(default=0.01, allow_inf_nan=False)
    """Slope below 0."""


class Gelu(Activation):
    """x times the normal distribution function of x."""

    torch_name: ClassVar[str] = "GELU"
    type: Literal["gelu"] = "gelu"
    approximate: Literal["none", "tanh"] = "none"
    """`none` is exact; `tanh` is the faster formula that GPT-2 used."""


class Silu(Activation):
    """x * sigmoid(x), also called swish."""

    torch_name: ClassVar[str] = "SiLU"
    type: Literal["silu"] = "silu"


class Sigmoid(Activation):
    """1 / (1 + exp(-x))."""

    torch_name: ClassVar[str] = "Sigmoid"
    type: Literal["sigmoid"] = "sigmoid"


class Tanh(Activation):
    """Hyperbolic tangent."""

    torch_name: ClassVar[str] = "Tanh"
    type: Literal["tanh"] = "tanh"
