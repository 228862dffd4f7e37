"""The rectifier and its kin: relu, relu6, leaky_relu."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from declarative_train.components.component import Layer, Misfit
from declarative_train.components.layers.fit import Inputs, needs_float

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
