"""Smooth gates of their own input: silu, mish."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from declarative_train.components.component import Layer, Misfit
from declarative_train.components.layers.fit import Inputs, needs_float

if TYPE_CHECKING:
    from torch import nn


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
