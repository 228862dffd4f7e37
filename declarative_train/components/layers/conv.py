"""Convolutions over one, two and three spatial dimensions, and transposed convolutions, which can enlarge
these dimensions.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterable
from math import prod
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from declarative_train.components.component import Init, ShapeError
from declarative_train.components.layers.default_inits import linear_bias, linear_weight
from declarative_train.components.layers.shape_checks import Inputs, dtype_of, needs_parameter_dtype, needs_shape
from declarative_train.components.layers.sizes import SHAPES, Sizes, Spatial, check_kernel, check_sizes, per_dim
from declarative_train.components.matrix_products import Product, Use
from declarative_train.core.amounts import format_count

if TYPE_CHECKING:
    from torch import nn


class Convolution(Spatial, ABC):
    """Base class of convolutions. Parameters `weight` (out, in / groups, *kernel) and `bias` (out,)."""

    out_channels: int = Field(ge=1)
    """Channels of the output; those of the input follow from its shape."""
    kernel_size: Sizes
    """Size of the kernel: one number, or one per spatial dimension."""
    stride: Sizes = 1
    """Step of the kernel."""
    padding: Sizes | Literal["same", "valid"] = 0
    """Number of elements added on both sides of each spatial dimension; `same` keeps the size (stride 1), `valid` adds
    0.
    """
    dilation: Sizes = 1
    """Distance between the kernel's elements."""
    groups: int = Field(default=1, ge=1)
    """Number of groups of channels that are convolved separately; the number of input channels makes the convolution
    depthwise."""
    bias: bool = True
    """Add a learned number per output channel."""
    padding_mode: Literal["zeros", "reflect", "replicate", "circular"] = "zeros"
    """The values of the padding."""

    def check(self, inputs: Inputs) -> ShapeError | None:
        x, n = inputs["x"], self.num_dims
        return (
            needs_shape(self, inputs, SHAPES[n], n + 1)
            or needs_parameter_dtype(self, inputs)
            or check_sizes(self, n, {"kernel_size": 1, "stride": 1, "padding": 0, "dilation": 1})
            or check_groups(self.groups, x.shape[0], self.out_channels)
            or self._check_padding(inputs)
            or check_kernel(x, per_dim(self.kernel_size, n), per_dim(self.dilation, n), self._growth())
        )

    def _growth(self) -> tuple[int, ...]:
        """Return how many elements the padding adds to each spatial dimension, at both ends together."""
        n = self.num_dims
        if self.padding == "same":
            return tuple(
                d * (k - 1) for k, d in zip(per_dim(self.kernel_size, n), per_dim(self.dilation, n), strict=True)
            )
        return tuple(2 * p for p in per_dim(0 if isinstance(self.padding, str) else self.padding, n))

    def _check_padding(self, inputs: Inputs) -> ShapeError | None:
        x = inputs["x"]
        if self.padding == "same" and max(per_dim(self.stride, self.num_dims)) > 1:
            return ShapeError("`padding: same` keeps the size, a stride above 1 does not", field="padding")
        for size, padded in zip(x.shape[1:], self._growth(), strict=True):
            side = (padded + 1) // 2
            most = {"reflect": size - 1, "circular": size}.get(self.padding_mode, side)
            if side > most:
                return ShapeError(
                    f"`padding_mode: {self.padding_mode}` can pad a size of {size} by {most} at most, not by {side}: "
                    f"`x` is {x}",
                    field="padding_mode",
                )
        return None

    def build(self, inputs: Inputs) -> nn.Module:
        from torch import nn

        n, x = self.num_dims, inputs["x"]
        return (nn.Conv1d, nn.Conv2d, nn.Conv3d)[n - 1](
            x.shape[0],
            self.out_channels,
            per_dim(self.kernel_size, n),  # type: ignore[arg-type]
            stride=per_dim(self.stride, n),  # type: ignore[arg-type]
            padding=self.padding if isinstance(self.padding, str) else per_dim(self.padding, n),  # type: ignore[arg-type]
            dilation=per_dim(self.dilation, n),  # type: ignore[arg-type]
            groups=self.groups,
            bias=self.bias,
            padding_mode=self.padding_mode,
            dtype=dtype_of(x),
        )

    def init_of(self, parameter: str, inputs: Inputs) -> Init:
        if parameter == "weight":
            return linear_weight()
        if parameter == "bias":
            return linear_bias(inputs["x"].shape[0] // self.groups * prod(per_dim(self.kernel_size, self.num_dims)))
        return super().init_of(parameter, inputs)

    def products(self, use: Use) -> Iterable[Product]:
        return use.each_matrix_for(use.output)


class Conv1d(Convolution):
    """Convolution over one dimension: (B, C, T) to (B, out_channels, T')."""

    type: Literal["conv1d"] = "conv1d"


class Conv2d(Convolution):
    """Convolution over an image: (B, C, H, W) to (B, out_channels, H', W')."""

    type: Literal["conv2d"] = "conv2d"


class Conv3d(Convolution):
    """Convolution over a volume: (B, C, D, H, W) to (B, out_channels, D', H', W')."""

    type: Literal["conv3d"] = "conv3d"


def check_groups(groups: int, in_channels: int, out_channels: int) -> ShapeError | None:
    """Return an error unless `groups` divides both `in_channels` and `out_channels`."""
    for channels, which in ((in_channels, "input"), (out_channels, "output")):
        if channels % groups:
            return ShapeError(
                f"{format_count(channels, f'{which} channel')} cannot be divided into {groups} groups", field="groups"
            )
    return None


class TransposedConvolution(Spatial, ABC):
    """Base class of transposed convolutions. Parameters `weight` (in, out / groups, *kernel) and `bias` (out,)."""

    out_channels: int = Field(ge=1)
    """Channels of the output; those of the input follow from its shape."""
    kernel_size: Sizes
    """Size of the kernel: one number, or one per spatial dimension."""
    stride: Sizes = 1
    """Distance between the positions of the kernel in the result: the factor of enlargement."""
    padding: Sizes = 0
    """Number of elements removed from both sides of the result."""
    output_padding: Sizes = 0
    """Added to one side of the result. With a stride, inputs of several sizes give the same size of the result; this
    key selects one of them. It is smaller than the stride or the dilation.
    """
    dilation: Sizes = 1
    """Distance between the kernel's elements."""
    groups: int = Field(default=1, ge=1)
    """Number of groups of channels that are convolved separately."""
    bias: bool = True
    """Add a learned number per output channel."""

    def check(self, inputs: Inputs) -> ShapeError | None:
        n = self.num_dims
        least = {"kernel_size": 1, "stride": 1, "padding": 0, "output_padding": 0, "dilation": 1}
        return (
            needs_shape(self, inputs, SHAPES[n], n + 1)
            or needs_parameter_dtype(self, inputs)
            or check_sizes(self, n, least)
            or check_groups(self.groups, inputs["x"].shape[0], self.out_channels)
            or self._check_result(inputs)
        )

    def _check_result(self, inputs: Inputs) -> ShapeError | None:
        x, n = inputs["x"], self.num_dims
        fields = (self.kernel_size, self.stride, self.padding, self.output_padding, self.dilation)
        for size, *numbers in zip(x.shape[1:], *(per_dim(field, n) for field in fields), strict=True):
            k, s, p, more, d = numbers
            if more >= max(s, d):
                message = f"`output_padding` of {more} must be smaller than the stride {s} or the dilation {d}"
                return ShapeError(message, field="output_padding")
            result = (size - 1) * s - 2 * p + d * (k - 1) + more + 1
            if result < 1:
                return ShapeError(f"`padding` of {p} leaves nothing of the result: `x` is {x}", field="padding")
        return None

    def build(self, inputs: Inputs) -> nn.Module:
        from torch import nn

        n, x = self.num_dims, inputs["x"]
        return (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[n - 1](
            x.shape[0],
            self.out_channels,
            per_dim(self.kernel_size, n),  # type: ignore[arg-type]
            stride=per_dim(self.stride, n),  # type: ignore[arg-type]
            padding=per_dim(self.padding, n),  # type: ignore[arg-type]
            output_padding=per_dim(self.output_padding, n),  # type: ignore[arg-type]
            groups=self.groups,
            bias=self.bias,
            dilation=per_dim(self.dilation, n),  # type: ignore[arg-type]
            dtype=dtype_of(x),
        )

    def init_of(self, parameter: str, inputs: Inputs) -> Init:
        if parameter == "weight":
            return linear_weight()
        if parameter == "bias":  # torch computes the fan from the weight's second dimension, as in a convolution
            return linear_bias(self.out_channels // self.groups * prod(per_dim(self.kernel_size, self.num_dims)))
        return super().init_of(parameter, inputs)

    def products(self, use: Use) -> Iterable[Product]:
        return use.each_matrix_for(use.inputs["x"])


class ConvTranspose1d(TransposedConvolution):
    """Transposed convolution over one dimension: (B, C, T) to (B, out_channels, T')."""

    type: Literal["conv_transpose1d"] = "conv_transpose1d"


class ConvTranspose2d(TransposedConvolution):
    """Transposed convolution over an image: (B, C, H, W) to (B, out_channels, H', W')."""

    type: Literal["conv_transpose2d"] = "conv_transpose2d"


class ConvTranspose3d(TransposedConvolution):
    """Transposed convolution over a volume: (B, C, D, H, W) to (B, out_channels, D', H', W')."""

    type: Literal["conv_transpose3d"] = "conv_transpose3d"
