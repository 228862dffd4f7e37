"""Exponential below zero, linear above: elu, celu, selu."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from declarative_train.components.component import Layer, Misfit
from declarative_train.components.layers.fit import Inputs, needs_float

if TYPE_CHECKING:
    from torch import nn


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
