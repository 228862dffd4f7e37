"""Smooth relatives of relu and sign: softplus, softsign."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from declarative_train.components.component import Layer, Misfit
from declarative_train.components.layers.fit import Inputs, needs_float

if TYPE_CHECKING:
    from torch import nn


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
