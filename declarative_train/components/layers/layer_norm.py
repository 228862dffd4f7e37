"""Normalisation over the last dimensions of a sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from declarative_train.components.component import Init, Layer, Misfit
from declarative_train.components.layers.fit import Inputs, dtype_of, needs_trailing
from declarative_train.components.layers.starts import scale_and_shift

if TYPE_CHECKING:
    from torch import nn


class LayerNorm(Layer):
    """Mean 0 and variance 1 over the last dimensions of each sample, then a learned scale and shift.

    Parameters `weight` and `bias`, of the shape of those dimensions. Ba et al., Layer normalization, 2016.
    """

    type: Literal["layer_norm"] = "layer_norm"
    num_dims: int = Field(default=1, ge=1)
    """How many of the last dimensions are normalised together."""
    eps: float = Field(default=1e-5, gt=0, allow_inf_nan=False)
    """Added to the variance."""
    affine: bool = True
    """Learn a scale and a shift."""
    bias: bool = True
    """Learn the shift too; `affine: false` has neither."""

    def check(self, inputs: Inputs) -> Misfit | None:
        return needs_trailing(self, inputs, self.num_dims)

    def build(self, inputs: Inputs) -> nn.Module:
        from declarative_train.components.layers.modules.norms import LayerNorm as Module

        x = inputs["x"]
        return Module(x.shape[-self.num_dims :], self.eps, self.affine, self.bias, dtype_of(x))

    def init_of(self, parameter: str, inputs: Inputs) -> Init:
        return scale_and_shift(parameter) or super().init_of(parameter, inputs)
