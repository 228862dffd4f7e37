"""A gated linear unit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from declarative_train.components.component import Layer, Misfit
from declarative_train.components.layers.fit import Inputs, needs_along, needs_float

if TYPE_CHECKING:
    from torch import nn


class Glu(Layer):
    """Gated linear unit: the first half of a dimension times the sigmoid of the second."""

    type: Literal["glu"] = "glu"
    dim: int = -1
    """The dimension that is halved, in torch's numbers (the batch is 0)."""

    def check(self, inputs: Inputs) -> Misfit | None:
        if misfit := needs_float(self, inputs) or needs_along(self, self.dim, inputs):
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
