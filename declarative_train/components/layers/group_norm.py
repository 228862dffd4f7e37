"""Normalisation over groups of channels of a sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from declarative_train.components.component import Init, Layer, Misfit
from declarative_train.components.layers.fit import Inputs, divisors, dtype_of, needs_dimensions, needs_parameter_dtype
from declarative_train.components.layers.starts import scale_and_shift
from declarative_train.terms.amounts import counted

if TYPE_CHECKING:
    from torch import nn


class GroupNorm(Layer):
    """Mean 0 and variance 1 over groups of channels of each sample, then a learned scale and shift per channel.

    For (B, C, ...); parameters `weight` and `bias` (C,). Wu and He, Group normalization, 2018.
    """

    type: Literal["group_norm"] = "group_norm"
    num_groups: int = Field(ge=1)
    """Number of groups; it divides the channels. 1 normalises all channels together."""
    eps: float = Field(default=1e-5, gt=0, allow_inf_nan=False)
    """Added to the variance."""
    affine: bool = True
    """Learn a scale and a shift."""

    def check(self, inputs: Inputs) -> Misfit | None:
        x = inputs["x"]
        if misfit := needs_dimensions(self, inputs, "(B, C, ...)", 1) or needs_parameter_dtype(self, inputs):
            return misfit
        if x.shape[0] % self.num_groups:
            return Misfit(
                f"{counted(x.shape[0], 'channel')} of `x` {x} cannot be divided into {self.num_groups} groups",
                field="num_groups",
                help=f"set `num_groups` to one of {divisors(x.shape[0])}",
            )
        if x.num_elements == self.num_groups:
            return Misfit(
                f"each group of `x` {x} holds one value, which normalises to 0",
                field="num_groups",
                help="use fewer groups",
            )
        return None

    def build(self, inputs: Inputs) -> nn.Module:
        from torch import nn

        x = inputs["x"]
        return nn.GroupNorm(self.num_groups, x.shape[0], self.eps, self.affine, dtype=dtype_of(x))

    def init_of(self, parameter: str, inputs: Inputs) -> Init:
        return scale_and_shift(parameter) or super().init_of(parameter, inputs)
