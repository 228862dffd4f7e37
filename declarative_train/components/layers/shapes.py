"""Layers that change the shape: flatten, unflatten, reshape, permute, squeeze, unsqueeze, identity. Dimensions are
numbered as in torch: the batch is dimension 0 (`B` in a shape), and always stays first.
"""

from __future__ import annotations

from math import prod
from typing import ClassVar, Literal

from declarative_train.components.component import Layer, ShapeError
from declarative_train.components.expressions.functions import default
from declarative_train.components.layers.shape_checks import FieldsLayer, FunctionLayer, Inputs, resolve_dim
from declarative_train.core.amounts import format_count
from declarative_train.core.tensor_spec import TensorSpec


class Identity(FieldsLayer):
    """Returns its input."""

    operation: ClassVar[str] = "pos"
    module: ClassVar[str] = "nn.Identity"
    type: Literal["identity"] = "identity"


class Flatten(FunctionLayer):
    """Merges neighbouring dimensions into one; by default all dimensions except the batch. An input (B), with one
    number per sample, becomes (B, 1).
    """

    type: Literal["flatten"] = "flatten"
    start_dim: int = default("flatten", "start_dim")
    """The first of these dimensions."""
    end_dim: int = default("flatten", "end_dim")
    """The last of these dimensions."""

    def check(self, inputs: Inputs) -> ShapeError | None:
        x = inputs["x"]
        if not x.shape:
            return None if (self.start_dim, self.end_dim) == (1, -1) else _no_dimensions(self, x)
        start = resolve_dim("start_dim", self.start_dim, len(x.shape) + 1)
        end = resolve_dim("end_dim", self.end_dim, len(x.shape) + 1)
        if isinstance(start, ShapeError):
            return start
        if isinstance(end, ShapeError):
            return end
        if start > end:
            return ShapeError(f"`start_dim: {self.start_dim}` comes after `end_dim: {self.end_dim}`", field="start_dim")
        return None


class Unflatten(FieldsLayer):
    """Splits one dimension into several."""

    operation: ClassVar[str] = "reshape"
    module: ClassVar[str] = "nn.Unflatten"
    type: Literal["unflatten"] = "unflatten"
    dim: int = -1
    """The dimension to split."""
    sizes: tuple[int, ...]
    """The new sizes; one of them may be -1 and is computed from the others."""

    def check(self, inputs: Inputs) -> ShapeError | None:
        x = inputs["x"]
        dim = resolve_dim("dim", self.dim, len(x.shape) + 1)
        if isinstance(dim, ShapeError):
            return dim
        return _check_sizes("sizes", self.sizes, x.shape[dim - 1], f"dimension {self.dim} of `x` {x}")


class Reshape(FunctionLayer):
    """Gives the same elements another shape."""

    type: Literal["reshape"] = "reshape"
    shape: tuple[Literal["B"] | int, ...]
    """The shape, which begins with the batch: [B, 8, 8]. One size may be -1 and is computed from the others."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes of a sample after the reshape."""
        return tuple(size for size in self.shape if size != "B")

    def check(self, inputs: Inputs) -> ShapeError | None:
        x = inputs["x"]
        if self.shape[:1] != ("B",) or "B" in self.shape[1:]:
            message = "a shape begins with the batch, `B`, and has it once"
            return ShapeError(message, field="shape", help=f"write [{', '.join(['B', *map(str, self.sizes)])}]")
        return _check_sizes("shape", self.sizes, x.num_elements, f"a sample of `x` {x}")


class Permute(FunctionLayer):
    """Puts the dimensions in another order."""

    type: Literal["permute"] = "permute"
    dims: tuple[int, ...]
    """The new order, which begins with the batch, 0: [0, 2, 1] turns (B, C, T) into (B, T, C)."""

    def check(self, inputs: Inputs) -> ShapeError | None:
        rank = len(inputs["x"].shape) + 1
        if self.dims[:1] != (0,):
            without_batch = sorted(self.dims) == list(range(rank - 1))
            order = [0, *(dim + 1 for dim in self.dims)] if without_batch else [0, *(dim for dim in self.dims if dim)]
            message = "an order of dimensions begins with the batch, 0"
            return ShapeError(message, field="dims", help=f"write {order}")
        found = [resolve_dim("dims", dim, rank) for dim in self.dims[1:]]
        if wrong := next((dim for dim in found if isinstance(dim, ShapeError)), None):
            return wrong
        if sorted(dim for dim in found if isinstance(dim, int)) != list(range(1, rank)):
            message = f"`dims` must name each dimension of `x` {inputs['x']} once, the batch as 0"
            return ShapeError(message, field="dims", help=f"an order of {', '.join(map(str, range(rank)))}")
        return None


class Squeeze(FunctionLayer):
    """Drops a dimension of size 1."""

    type: Literal["squeeze"] = "squeeze"
    dim: int = default("squeeze", "dim")
    """The dimension to drop."""

    def check(self, inputs: Inputs) -> ShapeError | None:
        x = inputs["x"]
        dim = resolve_dim("dim", self.dim, len(x.shape) + 1)
        if isinstance(dim, ShapeError):
            return dim
        if x.shape[dim - 1] != 1:
            return ShapeError(
                f"`squeeze` drops a dimension of size 1, dimension {self.dim} of `x` {x} is not", field="dim"
            )
        return None


class Unsqueeze(FunctionLayer):
    """Inserts a dimension of size 1."""

    type: Literal["unsqueeze"] = "unsqueeze"
    dim: int = default("unsqueeze", "dim")
    """Position of the new dimension in the result."""

    def check(self, inputs: Inputs) -> ShapeError | None:
        found = resolve_dim("dim", self.dim, len(inputs["x"].shape) + 2)
        return found if isinstance(found, ShapeError) else None


def _no_dimensions(layer: Layer, x: TensorSpec) -> ShapeError:
    return ShapeError(f"`{layer.type}` needs a dimension after the batch, `x` is {x}", port="x")


def _check_sizes(field: str, sizes: tuple[int, ...], elements: int, what: str) -> ShapeError | None:
    """Return an error unless the product of `sizes` is `elements`. One size may be -1: it is chosen so that the product
    is right. `field` and `what` are for the message: the key that sets the sizes, and the tensor or dimension that is
    divided."""
    if bad := [size for size in sizes if size < 1 and size != -1]:
        return ShapeError(f"`{field}` holds {bad[0]}: sizes are 1 or more, or -1", field=field)
    if sizes.count(-1) > 1:
        return ShapeError(f"`{field}` holds -1 more than once", field=field)
    if not sizes and field == "sizes":
        return ShapeError("`sizes` is empty", field=field)
    known = prod(size for size in sizes if size != -1)
    if -1 in sizes:
        if elements and elements % known == 0:
            return None
        return ShapeError(f"{what} has {format_count(elements, 'element')}, which {known} does not divide", field=field)
    if known == elements:
        return None
    written = " x ".join(map(str, sizes)) or "1"
    return ShapeError(f"{what} has {format_count(elements, 'element')}, `{field}` {written} = {known}", field=field)
