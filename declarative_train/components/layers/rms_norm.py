"""Scaling to root mean square 1 over the last dimensions of a sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from declarative_train.components.component import Init, Layer, Misfit
from declarative_train.components.layers.fit import Inputs, dtype_of, needs_trailing
from declarative_train.components.layers.starts import start

if TYPE_CHECKING:
    from torch import nn


class RmsNorm(Layer):
    """Root mean square 1 over the last dimensions of each sample, then a learned scale.

    Parameter `weight`. Zhang and Sennrich, Root mean square layer normalization, 2019.
    """

    type: Literal["rms_norm"] = "rms_norm"
    num_dims: int = Field(default=1, ge=1)
    """How many of the last dimensions are normalised together."""
    eps: float = Field(default=1e-6, gt=0, allow_inf_nan=False)
    """Added to the mean square."""
    affine: bool = True
    """Learn a scale."""

    def check(self, inputs: Inputs) -> Misfit | None:
        return needs_trailing(self, inputs, self.num_dims)

    def build(self, inputs: Inputs) -> nn.Module:
        from declarative_train.components.layers.modules.norms import RmsNorm as Module

        return Module(inputs["x"].shape[-self.num_dims :], self.eps, self.affine, dtype_of(inputs["x"]))

    def init_of(self, parameter: str, inputs: Inputs) -> Init:
        return start("ones") if parameter == "weight" else super().init_of(parameter, inputs)
