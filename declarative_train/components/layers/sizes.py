"""Sizes of kernels, strides and windows (one number for all spatial dimensions or one for each), and checks of
kernels.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping

from declarative_train.components.component import Layer, ShapeError
from declarative_train.core.amounts import format_count
from declarative_train.core.tensor_spec import TensorSpec

Sizes = int | tuple[int, ...]

SHAPES = {1: "(B, C, T)", 2: "(B, C, H, W)", 3: "(B, C, D, H, W)"}  # by number of spatial dimensions


class Spatial(Layer, ABC):
    """Base class of layers over one, two or three spatial dimensions. The type of the layer says how many:
    `conv2d` has two.
    """

    @property
    def num_dims(self) -> int:
        return int(self.type[-2])


def per_dim(value: Sizes, num_dims: int) -> tuple[int, ...]:
    """Return one size for each of the `num_dims` spatial dimensions. `value`: one number for all dimensions, or one
    for each.
    """
    return value if isinstance(value, tuple) else (value,) * num_dims


def check_sizes(layer: Layer, num_dims: int, least: Mapping[str, int]) -> ShapeError | None:
    """Return an error unless each of the fields named in `least` has one number or `num_dims` numbers, all at least the
    field's minimum. `least`: field name -> minimum. Fields that are None are not checked.
    """
    for field, smallest in least.items():
        value = getattr(layer, field)
        if value is None or isinstance(value, str):
            continue
        if isinstance(value, tuple) and len(value) != num_dims:
            return ShapeError(
                f"`{field}` has {format_count(len(value), 'entry')}, `{layer.type}` has "
                f"{format_count(num_dims, 'spatial dimension')}",
                field=field,
                help=f"write one number for all, or {num_dims}",
            )
        if (found := min(per_dim(value, num_dims))) < smallest:
            return ShapeError(f"`{field}` holds {found}, it must be at least {smallest}", field=field)
    return None


def check_kernel(
    x: TensorSpec, kernel: tuple[int, ...], dilation: tuple[int, ...], padded: tuple[int, ...]
) -> ShapeError | None:
    """Return an error unless the kernel fits into the padded input `x`. `kernel`, `dilation`: size and dilation in
    each spatial dimension. `padded`: padding of each spatial dimension, both ends together.
    """
    for size, k, d, more in zip(x.shape[1:], kernel, dilation, padded, strict=True):
        reach = d * (k - 1) + 1
        if reach > size + more:
            spread = f" (dilated to {reach})" if d > 1 else ""
            room = f" padded to {size + more}" if more else ""
            message = f"a kernel of {k}{spread} is larger than the input: `x` {x} has size {size}{room}"
            hint = "use a smaller kernel, more padding, or fewer strides before it"
            return ShapeError(message, field="kernel_size", help=hint)
    return None
