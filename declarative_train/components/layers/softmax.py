"""Probabilities along a dimension: softmax, log_softmax."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from declarative_train.components.component import Layer, Misfit
from declarative_train.components.layers.fit import Inputs, needs_along, needs_float

if TYPE_CHECKING:
    from torch import nn


class Softmax(Layer):
    """exp(x), scaled to sum to 1 along a dimension. Losses on logits do not want it."""

    type: Literal["softmax"] = "softmax"
    dim: int = -1
    """The dimension that sums to 1, in torch's numbers (the batch is 0)."""

    def check(self, inputs: Inputs) -> Misfit | None:
        return needs_float(self, inputs) or needs_along(self, self.dim, inputs)

    def build(self, inputs: Inputs) -> nn.Module:
        from torch import nn

        return nn.Softmax(self.dim)


class LogSoftmax(Layer):
    """log(softmax(x)), computed safely; what `nll` takes."""

    type: Literal["log_softmax"] = "log_softmax"
    dim: int = -1
    """The dimension that sums to 1, in torch's numbers (the batch is 0)."""

    def check(self, inputs: Inputs) -> Misfit | None:
        return needs_float(self, inputs) or needs_along(self, self.dim, inputs)

    def build(self, inputs: Inputs) -> nn.Module:
        from torch import nn

        return nn.LogSoftmax(self.dim)
