"""A rectifier with a learned slope."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from declarative_train.components.component import Init, Layer, Misfit
from declarative_train.components.layers.fit import Inputs, dtype_of, needs_dimensions, needs_parameter_dtype
from declarative_train.components.layers.starts import start

if TYPE_CHECKING:
    from torch import nn


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
        return start("constant", value=0.25) if parameter == "weight" else super().init_of(parameter, inputs)
