"""The nonlinearity of most transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from declarative_train.components.component import Layer, Misfit
from declarative_train.components.layers.fit import Inputs, needs_float

if TYPE_CHECKING:
    from torch import nn


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
