"""Pooling over spatial dimensions: max_pool, avg_pool, adaptive_*, global_*."""

from __future__ import annotations

from abc import ABC
from typing import TYPE_CHECKING, ClassVar, Literal

from declarative_train.components.component import ShapeError
from declarative_train.components.layers.shape_checks import (
    FieldsLayer,
    Inputs,
    needs_dimensions,
    needs_float,
    needs_shape,
)
from declarative_train.components.layers.sizes import SHAPES, Sizes, Spatial, check_kernel, check_sizes, per_dim

if TYPE_CHECKING:
    from torch import nn


class MaxPool(Spatial, ABC):
    """Base class of max pooling."""

    kernel_size: Sizes
    """Size of the window: one number, or one per spatial dimension."""
    stride: Sizes | None = None
    """Step of the window; by default its size."""
    padding: Sizes = 0
    """Added on both sides, at most half of the window."""
    dilation: Sizes = 1
    """Distance between the window's elements."""
    ceil_mode: bool = False
    """Keep a last window that is not full."""

    def check(self, inputs: Inputs) -> ShapeError | None:
        n = self.num_dims
        return (
            needs_shape(self, inputs, SHAPES[n], n + 1)
            or needs_float(self, inputs)
            or check_sizes(self, n, {"kernel_size": 1, "stride": 1, "padding": 0, "dilation": 1})
            or check_window(inputs, n, self.kernel_size, self.padding, self.dilation)
            or self._check_padding_only(inputs)
        )

    def _check_padding_only(self, inputs: Inputs) -> ShapeError | None:
        """Return an error if a window could contain only padding, which would give -inf. This can happen because a
        dilated window may be larger than the input.
        """
        x, n = inputs["x"], self.num_dims
        fields = (self.kernel_size, self.stride or self.kernel_size, self.padding, self.dilation)
        for size, k, s, p, d in zip(x.shape[1:], *(per_dim(field, n) for field in fields), strict=True):
            if d > size and any(not any(0 <= at + i * d < size for i in range(k)) for at in range(-p, 0, s)):
                return ShapeError(f"with `dilation` {d} a window sees only padding: `x` is {x}", field="dilation")
        return None

    def build(self, inputs: Inputs) -> nn.Module:
        from torch import nn

        n = self.num_dims
        return (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)[n - 1](
            per_dim(self.kernel_size, n),
            stride=None if self.stride is None else per_dim(self.stride, n),
            padding=per_dim(self.padding, n),
            dilation=per_dim(self.dilation, n),
            ceil_mode=self.ceil_mode,
        )


class MaxPool1d(MaxPool):
    """The largest value of each window: (B, C, T) to (B, C, T')."""

    type: Literal["max_pool1d"] = "max_pool1d"


class MaxPool2d(MaxPool):
    """The largest value of each window: (B, C, H, W) to (B, C, H', W')."""

    type: Literal["max_pool2d"] = "max_pool2d"


class MaxPool3d(MaxPool):
    """The largest value of each window: (B, C, D, H, W) to (B, C, D', H', W')."""

    type: Literal["max_pool3d"] = "max_pool3d"


class AveragePool(Spatial, ABC):
    """Base class of average pooling."""

    kernel_size: Sizes
    """Size of the window: one number, or one per spatial dimension."""
    stride: Sizes | None = None
    """Step of the window; by default its size."""
    padding: Sizes = 0
    """Zeros added on both sides, at most half of the window."""
    ceil_mode: bool = False
    """Keep a last window that is not full."""
    count_include_pad: bool = True
    """Count the padding in the mean."""

    def check(self, inputs: Inputs) -> ShapeError | None:
        n = self.num_dims
        return (
            needs_shape(self, inputs, SHAPES[n], n + 1)
            or needs_float(self, inputs)
            or check_sizes(self, n, {"kernel_size": 1, "stride": 1, "padding": 0})
            or check_window(inputs, n, self.kernel_size, self.padding, 1)
            or self._check_volume(inputs)
        )

    def _check_volume(self, inputs: Inputs) -> ShapeError | None:
        """Return an error for an input that avg_pool3d does not support, although avg_pool1d and avg_pool2d do;
        otherwise None. It supports no half precision on the CPU, and no input that is smaller than the window before
        padding."""
        x, n = inputs["x"], self.num_dims
        if n < 3:
            return None
        if x.dtype in ("float16", "bfloat16"):
            return ShapeError(f"`avg_pool3d` takes no {x.dtype}", port="x", help="set the field's `dtype: float32`")
        return check_kernel(x, per_dim(self.kernel_size, n), (1,) * n, (0,) * n)

    def build(self, inputs: Inputs) -> nn.Module:
        from torch import nn

        n = self.num_dims
        return (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)[n - 1](
            per_dim(self.kernel_size, n),  # type: ignore[arg-type]
            stride=None if self.stride is None else per_dim(self.stride, n),  # type: ignore[arg-type]
            padding=per_dim(self.padding, n),  # type: ignore[arg-type]
            ceil_mode=self.ceil_mode,
            count_include_pad=self.count_include_pad,
        )


class AvgPool1d(AveragePool):
    """The mean of each window: (B, C, T) to (B, C, T')."""

    type: Literal["avg_pool1d"] = "avg_pool1d"


class AvgPool2d(AveragePool):
    """The mean of each window: (B, C, H, W) to (B, C, H', W')."""

    type: Literal["avg_pool2d"] = "avg_pool2d"


class AvgPool3d(AveragePool):
    """The mean of each window: (B, C, D, H, W) to (B, C, D', H', W')."""

    type: Literal["avg_pool3d"] = "avg_pool3d"


class AdaptivePool(Spatial, ABC):
    """Base class of adaptive pooling: the windows are chosen so that the result has a given size."""

    output_size: Sizes
    """Size of the result: one number, or one per spatial dimension."""

    def check(self, inputs: Inputs) -> ShapeError | None:
        n = self.num_dims
        return (
            needs_shape(self, inputs, SHAPES[n], n + 1)
            or needs_float(self, inputs)
            or check_sizes(self, n, {"output_size": 1})
        )

    def build(self, inputs: Inputs) -> nn.Module:
        from torch import nn

        words = self.type.split("_")  # adaptive_avg_pool1d
        module: type[nn.Module] = getattr(nn, "".join(word.capitalize() for word in words))
        return module(per_dim(self.output_size, self.num_dims))


class AdaptiveAvgPool1d(AdaptivePool):
    """Means over windows chosen so that the result has the given size: (B, C, T) to (B, C, T')."""

    type: Literal["adaptive_avg_pool1d"] = "adaptive_avg_pool1d"


class AdaptiveAvgPool2d(AdaptivePool):
    """Means over windows chosen so that the result has the given size: (B, C, H, W) to (B, C, H', W')."""

    type: Literal["adaptive_avg_pool2d"] = "adaptive_avg_pool2d"


class AdaptiveAvgPool3d(AdaptivePool):
    """Means over windows chosen so that the result has the given size: (B, C, D, H, W) to (B, C, D', H', W')."""

    type: Literal["adaptive_avg_pool3d"] = "adaptive_avg_pool3d"


class AdaptiveMaxPool1d(AdaptivePool):
    """Largest values of windows chosen so that the result has the given size: (B, C, T) to (B, C, T')."""

    type: Literal["adaptive_max_pool1d"] = "adaptive_max_pool1d"


class AdaptiveMaxPool2d(AdaptivePool):
    """Largest values of windows chosen so that the result has the given size: (B, C, H, W) to (B, C, H', W')."""

    type: Literal["adaptive_max_pool2d"] = "adaptive_max_pool2d"


class AdaptiveMaxPool3d(AdaptivePool):
    """Largest values of windows chosen so that the result has the given size: (B, C, D, H, W) to (B, C, D', H', W')."""

    type: Literal["adaptive_max_pool3d"] = "adaptive_max_pool3d"


class GlobalAvgPool(FieldsLayer):
    """The mean of each channel: (B, C, ...) to (B, C)."""

    module: ClassVar[str] = "shapes.GlobalAveragePool"
    type: Literal["global_avg_pool"] = "global_avg_pool"

    def check(self, inputs: Inputs) -> ShapeError | None:
        return needs_dimensions(self, inputs, "(B, C, ...) with a size to pool over", 2) or needs_float(self, inputs)


class GlobalMaxPool(FieldsLayer):
    """The largest value of each channel: (B, C, ...) to (B, C)."""

    module: ClassVar[str] = "shapes.GlobalMaxPoolModule"
    type: Literal["global_max_pool"] = "global_max_pool"

    def check(self, inputs: Inputs) -> ShapeError | None:
        return needs_dimensions(self, inputs, "(B, C, ...) with a size to pool over", 2) or needs_float(self, inputs)


def check_window(inputs: Inputs, n: int, kernel_size: Sizes, padding: Sizes, dilation: Sizes) -> ShapeError | None:
    """Return an error unless the padding is at most half a window and the window fits into the padded input.
    `n`: number of spatial dimensions.
    """
    kernel, sides = per_dim(kernel_size, n), per_dim(padding, n)
    for k, p in zip(kernel, sides, strict=True):
        if p > k // 2:
            return ShapeError(f"`padding` of {p} is more than half of the window of {k}", field="padding")
    return check_kernel(inputs["x"], kernel, per_dim(dilation, n), tuple(2 * p for p in sides))
