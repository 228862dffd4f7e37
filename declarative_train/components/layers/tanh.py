"""The hyperbolic tangent and its kin: tanh, hardtanh, tanhshrink."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from declarative_train.components.component import Layer, Misfit
from declarative_train.components.layers.fit import Inputs, needs_float

if TYPE_CHECKING:
    from torch import nn


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
