"""Layers that resize images or cut them into patches: upsample, pixel_shuffle, pixel_unshuffle, patch_embedding."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from declarative_train.components.component import Init, Layer, ShapeError
from declarative_train.components.layers.default_inits import linear_bias, linear_weight
from declarative_train.components.layers.shape_checks import (
    FieldsLayer,
    Inputs,
    dtype_of,
    needs_float,
    needs_parameter_dtype,
    needs_shape,
)
from declarative_train.components.layers.sizes import Sizes, check_sizes, per_dim
from declarative_train.components.matrix_products import Product, Use
from declarative_train.core.amounts import format_count

if TYPE_CHECKING:
    from torch import nn

_DIMS = {"linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3}  # interpolations for one number of dimensions only


class Upsample(Layer):
    """Enlarges (or shrinks) the spatial dimensions by interpolation: (B, C, T), (B, C, H, W) or (B, C, D, H, W)."""

    type: Literal["upsample"] = "upsample"
    scale_factor: float | tuple[float, ...] | None = None
    """Factor on the size: one number, or one per spatial dimension."""
    size: Sizes | None = None
    """Size of the result, instead of a factor."""
    mode: Literal["nearest", "nearest-exact", "linear", "bilinear", "bicubic", "trilinear", "area"] = "nearest"
    """The interpolation: `linear` for one spatial dimension, `bilinear` and `bicubic` for two, `trilinear` for three,
    the others for any."""
    align_corners: bool = False
    """For the modes `linear`, `bilinear`, `bicubic` and `trilinear`: corner elements keep their values."""

    def check(self, inputs: Inputs) -> ShapeError | None:
        x = inputs["x"]
        if shape_error := needs_shape(self, inputs, "(B, C, ...) with one to three spatial dimensions", 2, 3, 4):
            return shape_error
        n = len(x.shape) - 1
        if shape_error := needs_float(self, inputs) or check_sizes(self, n, {"size": 1}):
            return shape_error
        if (self.scale_factor is None) == (self.size is None):
            return ShapeError(
                "`upsample` takes either `scale_factor` or `size`", field=None if self.size is None else "size"
            )
        if self.mode in _DIMS and _DIMS[self.mode] != n:
            fitting = [mode for mode, dims in _DIMS.items() if dims == n]
            message = (
                f"`mode: {self.mode}` is for {format_count(_DIMS[self.mode], 'spatial dimension')}, `x` {x} has {n}"
            )
            return ShapeError(message, field="mode", help=f"use {' or '.join(fitting)}")
        if self.align_corners and self.mode not in _DIMS:
            return ShapeError(f"`align_corners` means nothing with `mode: {self.mode}`", field="align_corners")
        return self._check_factor(inputs, n)

    def _check_factor(self, inputs: Inputs, n: int) -> ShapeError | None:
        if self.scale_factor is None:
            return None
        factors = self._factors(n)
        if len(factors) != n:
            message = (
                f"`scale_factor` has {format_count(len(factors), 'entry')} for {format_count(n, 'spatial dimension')}"
            )
            return ShapeError(message, field="scale_factor")
        for size, factor in zip(inputs["x"].shape[1:], factors, strict=True):
            if not 0 < factor < float("inf"):
                return ShapeError(f"`scale_factor` holds {factor:g}, it must be above 0", field="scale_factor")
            if size * factor < 1:
                return ShapeError(
                    f"`scale_factor` of {factor:g} leaves nothing of a size of {size}", field="scale_factor"
                )
        return None

    def _factors(self, n: int) -> tuple[float, ...]:
        value = self.scale_factor or 1.0
        return value if isinstance(value, tuple) else (value,) * n

    def build(self, inputs: Inputs) -> nn.Module:
        from torch import nn

        n = len(inputs["x"].shape) - 1
        return nn.Upsample(
            size=None if self.size is None else per_dim(self.size, n),
            scale_factor=None if self.scale_factor is None else self._factors(n),
            mode=self.mode,
            align_corners=self.align_corners if self.mode in _DIMS else None,
        )


class PixelShuffle(FieldsLayer):
    """Enlarges an image by the factor r in both directions, and takes the new pixels from channels: (B, C * r * r, H,
    W) to (B, C, H * r, W * r).

    Shi et al., Real-time single image and video super-resolution, 2016.
    """

    module: ClassVar[str] = "nn.PixelShuffle"
    type: Literal["pixel_shuffle"] = "pixel_shuffle"
    factor: int = Field(ge=1)
    """The factor r."""

    def check(self, inputs: Inputs) -> ShapeError | None:
        if shape_error := needs_shape(self, inputs, "(B, C, H, W)", 3) or needs_float(self, inputs):
            return shape_error
        if inputs["x"].shape[0] % self.factor**2:
            message = (
                f"{format_count(inputs['x'].shape[0], 'channel')}, which is not a multiple of {self.factor} x "
                f"{self.factor}"
            )
            return ShapeError(message, field="factor")
        return None


class PixelUnshuffle(FieldsLayer):
    """Shrinks an image by the factor r in both directions, and moves its pixels to channels: (B, C, H * r, W *
    r) to (B, C * r * r, H, W).
    """

    module: ClassVar[str] = "nn.PixelUnshuffle"
    type: Literal["pixel_unshuffle"] = "pixel_unshuffle"
    factor: int = Field(ge=1)
    """The factor r."""

    def check(self, inputs: Inputs) -> ShapeError | None:
        if shape_error := needs_shape(self, inputs, "(B, C, H, W)", 3) or needs_float(self, inputs):
            return shape_error
        if any(size % self.factor for size in inputs["x"].shape[1:]):
            return ShapeError(
                f"height and width of `x` {inputs['x']} are not multiples of {self.factor}", field="factor"
            )
        return None


class PatchEmbedding(Layer):
    """Cuts an image into T patches, row by row, and maps each to a vector: (B, C, H, W) to (B, T, embedding_dim).

    Parameters `weight` (embedding_dim, C, *patch) and `bias` (embedding_dim,).
    """

    type: Literal["patch_embedding"] = "patch_embedding"
    patch_size: Sizes
    """Height and width of a patch; they must divide the height and width of the image."""
    embedding_dim: int = Field(ge=1)
    """Width of the embedding."""
    bias: bool = True
    """Add a learned vector."""

    def check(self, inputs: Inputs) -> ShapeError | None:
        if shape_error := (
            needs_shape(self, inputs, "(B, C, H, W)", 3)
            or needs_parameter_dtype(self, inputs)
            or check_sizes(self, 2, {"patch_size": 1})
        ):
            return shape_error
        for size, patch, side in zip(
            inputs["x"].shape[1:], per_dim(self.patch_size, 2), ("height", "width"), strict=True
        ):
            if size % patch:
                return ShapeError(
                    f"patches of {patch} do not divide the {side} {size} of `x` {inputs['x']}", field="patch_size"
                )
        return None

    def build(self, inputs: Inputs) -> nn.Module:
        from declarative_train.components.layers.modules.shapes import PatchEmbeddingModule

        x = inputs["x"]
        return PatchEmbeddingModule(x.shape[0], self.embedding_dim, per_dim(self.patch_size, 2), self.bias, dtype_of(x))

    def init_of(self, parameter: str, inputs: Inputs) -> Init:
        if parameter == "weight":
            return linear_weight()
        if parameter == "bias":
            return linear_bias(inputs["x"].shape[0] * prod(per_dim(self.patch_size, 2)))
        return super().init_of(parameter, inputs)

    def products(self, use: Use) -> Iterable[Product]:
        return use.each_matrix_for(use.output)
