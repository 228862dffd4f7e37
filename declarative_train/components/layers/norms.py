"""Normalisation layers over one sample (layer_norm, rms_norm, group_norm, instance_norm) and over groups of samples
(batch_norm). Also the mean over groups of samples (sample_mean).
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from declarative_train.components.component import Init, Layer, ShapeError
from declarative_train.components.layers.default_inits import scale_and_shift, start
from declarative_train.components.layers.sample_groups import Over, group_size
from declarative_train.components.layers.shape_checks import (
    Inputs,
    divisors,
    dtype_of,
    needs_dimensions,
    needs_float,
    needs_parameter_dtype,
    needs_trailing,
)
from declarative_train.core.amounts import format_count
from declarative_train.core.cuts import CutKind, LayerCut

if TYPE_CHECKING:
    from torch import nn


class LayerNorm(Layer):
    """Mean 0 and variance 1 over the last dimensions of each sample, then a learned scale and shift.

    Parameters `weight` and `bias`, with the shape of the normalised dimensions. Ba et al., Layer normalization, 2016.
    """

    type: Literal["layer_norm"] = "layer_norm"
    num_dims: int = Field(default=1, ge=1)
    """How many of the last dimensions are normalised together."""
    eps: float = Field(default=1e-5, gt=0, allow_inf_nan=False)
    """Added to the variance."""
    affine: bool = True
    """Learn a scale and a shift."""
    bias: bool = True
    """Learn the shift; without effect if `affine` is false, because then there is neither scale nor shift."""

    def check(self, inputs: Inputs) -> ShapeError | None:
        return needs_trailing(self, inputs, self.num_dims)

    def build(self, inputs: Inputs) -> nn.Module:
        from declarative_train.components.layers.modules.norms import LayerNormModule

        x = inputs["x"]
        return LayerNormModule(x.shape[-self.num_dims :], self.eps, self.affine, self.bias, dtype_of(x))

    def cut(self, kind: CutKind, inputs: Inputs, size: int) -> LayerCut | str | None:
        return LayerCut("tokens", {}) if kind == "tokens" and self.num_dims == 1 else None

    def init_of(self, parameter: str, inputs: Inputs) -> Init:
        return scale_and_shift(parameter) or super().init_of(parameter, inputs)


class RmsNorm(Layer):
    """Divides by the root mean square over the last dimensions of each sample, then multiplies by a learned scale.

    Parameter `weight`. Zhang and Sennrich, Root mean square layer normalization, 2019.
    """

    type: Literal["rms_norm"] = "rms_norm"
    num_dims: int = Field(default=1, ge=1)
    """How many of the last dimensions are normalised together."""
    eps: float = Field(default=1e-6, gt=0, allow_inf_nan=False)
    """Added to the mean square."""
    affine: bool = True
    """Learn a scale."""
    zero_centered: bool = False
    """The scale is 1 + `weight`, and `weight` starts at 0. So weight decay pulls the scale to 1. As in Gemma."""

    def check(self, inputs: Inputs) -> ShapeError | None:
        return needs_trailing(self, inputs, self.num_dims)

    def build(self, inputs: Inputs) -> nn.Module:
        from declarative_train.components.layers.modules.norms import RmsNormModule

        return RmsNormModule(
            inputs["x"].shape[-self.num_dims :], self.eps, self.affine, dtype_of(inputs["x"]), self.zero_centered
        )

    def cut(self, kind: CutKind, inputs: Inputs, size: int) -> LayerCut | str | None:
        return LayerCut("tokens", {}) if kind == "tokens" and self.num_dims == 1 else None

    def init_of(self, parameter: str, inputs: Inputs) -> Init:
        if parameter == "weight":
            return start("zeros" if self.zero_centered else "ones")
        return super().init_of(parameter, inputs)


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

    def check(self, inputs: Inputs) -> ShapeError | None:
        x = inputs["x"]
        if shape_error := needs_dimensions(self, inputs, "(B, C, ...)", 1) or needs_parameter_dtype(self, inputs):
            return shape_error
        if x.shape[0] % self.num_groups:
            message = (
                f"{format_count(x.shape[0], 'channel')} of `x` {x} cannot be divided into {self.num_groups} groups"
            )
            return ShapeError(message, field="num_groups", help=f"set `num_groups` to one of {divisors(x.shape[0])}")
        if x.num_elements == self.num_groups:
            message = f"each group of `x` {x} holds one value, which normalises to 0"
            return ShapeError(message, field="num_groups", help="use fewer groups")
        return None

    def build(self, inputs: Inputs) -> nn.Module:
        from declarative_train.components.layers.modules.norms import GroupNormModule

        x = inputs["x"]
        return GroupNormModule(self.num_groups, x.shape[0], self.eps, self.affine, dtype=dtype_of(x))

    def init_of(self, parameter: str, inputs: Inputs) -> Init:
        return scale_and_shift(parameter) or super().init_of(parameter, inputs)


class InstanceNorm(Layer):
    """Mean 0 and variance 1 over each channel of each sample, in training and evaluation alike.

    For (B, C, T), (B, C, H, W) and (B, C, D, H, W); parameters `weight` and `bias` (C,) if `affine`.
    """

    type: Literal["instance_norm"] = "instance_norm"
    eps: float = Field(default=1e-5, gt=0, allow_inf_nan=False)
    """Added to the variance."""
    affine: bool = False
    """Learn a scale and a shift per channel."""

    def check(self, inputs: Inputs) -> ShapeError | None:
        x = inputs["x"]
        if shape_error := needs_dimensions(self, inputs, "(B, C, T, ...)", 2) or needs_parameter_dtype(self, inputs):
            return shape_error
        if len(x.shape) > 4:
            return ShapeError(f"`instance_norm` takes at most (B, C, D, H, W), `x` is {x}", port="x")
        if prod(x.shape[1:]) == 1:
            return ShapeError(f"each channel of `x` {x} holds one value, which normalises to 0", port="x")
        return None

    def build(self, inputs: Inputs) -> nn.Module:
        from declarative_train.components.layers.modules.norms import InstanceNormModule

        x = inputs["x"]
        return InstanceNormModule(x.shape[0], self.eps, self.affine, dtype_of(x))

    def init_of(self, parameter: str, inputs: Inputs) -> Init:
        return scale_and_shift(parameter) or super().init_of(parameter, inputs)


class BatchNorm(Layer):
    """Mean 0 and variance 1 per channel over a group of samples, then a learned scale and shift.

    For (B, C) and (B, C, ...) with up to three more dimensions; parameters `weight` and `bias` (C,). Evaluation and
    frozen nodes use running statistics. Each step updates them once, with the mean of the statistics of its groups.
    Ioffe and Szegedy, Batch normalization, 2015.
    """

    mixes_samples: ClassVar[bool] = True

    type: Literal["batch_norm"] = "batch_norm"
    over: Over = "microbatch"
    """`N samples`: statistics over N consecutive samples of the global batch, the same on any number of GPUs.
    `microbatch`: over the samples that one GPU has at a time, so that gradients depend on the layout."""
    eps: float = Field(default=1e-5, gt=0, allow_inf_nan=False)
    """Added to the variance."""
    momentum: float = Field(default=0.1, ge=0, le=1)
    """Weight of the statistics of a step in the running statistics."""
    affine: bool = True
    """Learn a scale and a shift."""

    def check(self, inputs: Inputs) -> ShapeError | None:
        x = inputs["x"]
        if shape_error := needs_dimensions(self, inputs, "(B, C, ...)", 1) or needs_parameter_dtype(self, inputs):
            return shape_error
        if len(x.shape) > 4:
            return ShapeError(f"`batch_norm` takes at most (B, C, D, H, W), `x` is {x}", port="x")
        if group_size(self.over) == 1 and prod(x.shape[1:]) == 1:
            message = f"over 1 sample each channel of `x` {x} has one value, which normalises to 0"
            return ShapeError(message, field="over", help="take more samples, or `layer_norm`")
        return None

    def build(self, inputs: Inputs) -> nn.Module:
        from declarative_train.components.layers.modules.batch_norm import BatchNormModule

        x = inputs["x"]
        return BatchNormModule(x.shape[0], self.eps, self.momentum, self.affine, group_size(self.over), dtype_of(x))

    def init_of(self, parameter: str, inputs: Inputs) -> Init:
        return scale_and_shift(parameter) or super().init_of(parameter, inputs)


class SampleMean(Layer):
    """Mean over a group of samples: each sample gets the mean of its group, (B, ...) to (B, ...).

    Use it for a loss that compares a sample with the average sample, such as the divergence in `kto` or the centre of
    a teacher's scores. Padding does not count. Evaluation uses the mean over the groups of the last training step;
    before the first step it is 0.
    """

    mixes_samples: ClassVar[bool] = True

    type: Literal["sample_mean"] = "sample_mean"
    over: Over = "microbatch"
    """`N samples`: the mean over N consecutive samples of the global batch, the same on any number of GPUs.
    `microbatch`: over the samples that one GPU has at a time, so that it depends on the layout."""

    def check(self, inputs: Inputs) -> ShapeError | None:
        return needs_float(self, inputs, "x")

    def build(self, inputs: Inputs) -> nn.Module:
        from declarative_train.components.layers.modules.sample_mean import SampleMeanModule

        x = inputs["x"]
        return SampleMeanModule(x.shape, group_size(self.over), dtype_of(x))
