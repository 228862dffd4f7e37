"""Normalisation of each channel of a sample."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from declarative_train.components.component import Init, Layer, Misfit
from declarative_train.components.layers.fit import Inputs, dtype_of, needs_dimensions, needs_parameter_dtype
from declarative_train.components.layers.starts import scale_and_shift

if TYPE_CHECKING:
    from torch import nn


class InstanceNorm(Layer):
    """Mean 0 and variance 1 over each channel of each sample, in training and evaluation alike.

    For (B, C, T), (B, C, H, W) and (B, C, D, H, W); parameters `weight` and `bias` (C,) if `affine`.
    """

    type: Literal["instance_norm"] = "instance_norm"
    eps: float = Field(default=1e-5, gt=0, allow_inf_nan=False)
    """Added to the variance."""
    affine: bool = False
    """Learn a scale and a shift per channel."""

    def check(self, inputs: Inputs) -> Misfit | None:
        x = inputs["x"]
        if misfit := needs_dimensions(self, inputs, "(B, C, T, ...)", 2) or needs_parameter_dtype(self, inputs):
            return misfit
        if len(x.shape) > 4:
            return Misfit(f"`instance_norm` takes at most (B, C, D, H, W), `x` is {x}", port="x")
        if prod(x.shape[1:]) == 1:
            return Misfit(f"each channel of `x` {x} holds one value, which normalises to 0", port="x")
        return None

    def build(self, inputs: Inputs) -> nn.Module:
        from declarative_train.components.layers.modules.norms import InstanceNorm as Module

        x = inputs["x"]
        return Module(x.shape[0], self.eps, self.affine, dtype_of(x))

    def init_of(self, parameter: str, inputs: Inputs) -> Init:
        return scale_and_shift(parameter) or super().init_of(parameter, inputs)
