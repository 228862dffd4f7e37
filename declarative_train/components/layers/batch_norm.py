"""Batch normalisation, with a say over how many samples."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from declarative_train.components.component import Init, Layer, Misfit
from declarative_train.components.layers.fit import Inputs, dtype_of, needs_dimensions, needs_parameter_dtype
from declarative_train.components.layers.sample_groups import Over, group_size
from declarative_train.components.layers.starts import scale_and_shift

if TYPE_CHECKING:
    from torch import nn


class BatchNorm(Layer):
    """Mean 0 and variance 1 per channel over a group of samples, then a learned scale and shift.

    For (B, C) and (B, C, ...) with up to three more dimensions; parameters `weight` and `bias` (C,). Evaluation and
    frozen nodes use running statistics, which move once per step, by the mean over the groups of the step.
    Ioffe and Szegedy, Batch normalization, 2015.
    """

    mixes_samples: ClassVar[bool] = True

    type: Literal["batch_norm"] = "batch_norm"
    over: Over = "microbatch"
    """`N samples`: the statistics of N consecutive samples of the global batch, the same on any number of GPUs.
    `microbatch`: of whatever one GPU has at a time, so that gradients depend on the layout."""
    eps: float = Field(default=1e-5, gt=0, allow_inf_nan=False)
    """Added to the variance."""
    momentum: float = Field(default=0.1, ge=0, le=1)
    """Weight of a step in the running statistics."""
    affine: bool = True
    """Learn a scale and a shift."""

    def check(self, inputs: Inputs) -> Misfit | None:
        x = inputs["x"]
        if misfit := needs_dimensions(self, inputs, "(B, C, ...)", 1) or needs_parameter_dtype(self, inputs):
            return misfit
        if len(x.shape) > 4:
            return Misfit(f"`batch_norm` takes at most (B, C, D, H, W), `x` is {x}", port="x")
        if group_size(self.over) == 1 and prod(x.shape[1:]) == 1:
            message = f"over 1 sample each channel of `x` {x} has one value, which normalises to 0"
            return Misfit(message, field="over", help="take more samples, or `layer_norm`")
        return None

    def build(self, inputs: Inputs) -> nn.Module:
        from declarative_train.components.layers.modules.batch_norm import BatchNorm as Module

        x = inputs["x"]
        return Module(x.shape[0], self.eps, self.momentum, self.affine, group_size(self.over), dtype_of(x))

    def init_of(self, parameter: str, inputs: Inputs) -> Init:
        return scale_and_shift(parameter) or super().init_of(parameter, inputs)
