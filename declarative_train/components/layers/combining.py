"""Layers that combine several inputs: add, multiply, concat, stack."""

from __future__ import annotations

from abc import ABC
from typing import ClassVar, Literal

from declarative_train.components.component import Layer, Port, ShapeError
from declarative_train.components.expressions.functions import default
from declarative_train.components.layers.shape_checks import (
    FieldsLayer,
    FunctionLayer,
    Inputs,
    name_port,
    needs_dimensions,
    resolve_dim,
)
from declarative_train.core.cuts import CutKind, LayerCut


class Combining(FieldsLayer, ABC):
    """Base class of layers with any number of inputs."""

    ports: ClassVar[tuple[Port, ...]] = (Port("x", variadic=True),)


class Add(Combining):
    """Adds all inputs, element by element. An input with size 1 in a dimension is repeated to the size of the other
    inputs.
    """

    module: ClassVar[str] = "shapes.AddModule"
    operation: ClassVar[str] = "+"
    type: Literal["add"] = "add"

    def check(self, inputs: Inputs) -> ShapeError | None:
        return _check_elementwise(self, inputs)

    def cut(self, kind: CutKind, inputs: Inputs, size: int) -> LayerCut | str | None:
        return LayerCut(kind, {}) if kind in ("features", "tokens") else None


class Multiply(Combining):
    """Multiplies all inputs, element by element. An input with size 1 in a dimension is repeated to the size of the
    other inputs.
    """

    module: ClassVar[str] = "shapes.MultiplyModule"
    operation: ClassVar[str] = "*"
    type: Literal["multiply"] = "multiply"

    def check(self, inputs: Inputs) -> ShapeError | None:
        return _check_elementwise(self, inputs)

    def cut(self, kind: CutKind, inputs: Inputs, size: int) -> LayerCut | str | None:
        return LayerCut(kind, {}) if kind in ("features", "tokens") else None


class Concat(FunctionLayer, Combining):
    """Concatenates the inputs along one dimension; only in this dimension may their sizes differ.

    The result has the dtype to which torch promotes the dtypes of the inputs.
    """

    type: Literal["concat"] = "concat"
    dim: int = default("concat", "dim")
    """The dimension that grows, in torch's numbers (the batch is 0)."""

    def check(self, inputs: Inputs) -> ShapeError | None:
        port, first = next(iter(inputs.items()))
        if shape_error := needs_dimensions(self, inputs, "inputs (B, ..., D)", 1, port=port):
            return shape_error
        dim = resolve_dim("dim", self.dim, len(first.shape) + 1)
        if isinstance(dim, ShapeError):
            return dim
        for other, spec in inputs.items():
            one, two = list(first.shape), list(spec.shape)
            if len(one) != len(two) or one[: dim - 1] + one[dim:] != two[: dim - 1] + two[dim:]:
                return ShapeError(
                    f"`concat` takes inputs that differ in dimension {self.dim} only, "
                    f"{name_port(port)} is {first} and {name_port(other)} is {spec}",
                    port=other,
                )
        return None


class Stack(FunctionLayer, Combining):
    """Joins inputs of equal shape along a new dimension."""

    type: Literal["stack"] = "stack"
    dim: int = default("stack", "dim")
    """Position of the new dimension in the result, in torch's numbers (the batch is 0)."""

    def check(self, inputs: Inputs) -> ShapeError | None:
        port, first = next(iter(inputs.items()))
        for other, spec in inputs.items():
            if spec.shape != first.shape:
                message = (
                    f"`stack` takes inputs of one shape, {name_port(port)} is {first} and {name_port(other)} is {spec}"
                )
                return ShapeError(message, port=other, help="`concat` joins inputs that differ in one dimension")
        dim = resolve_dim("dim", self.dim, len(first.shape) + 2)
        return dim if isinstance(dim, ShapeError) else None


def _check_elementwise(layer: Layer, inputs: Inputs) -> ShapeError | None:
    """Return an error unless all inputs have the same number of dimensions, and in each dimension the same size or size
    1. Without this check torch would align the shapes at the right: it would broadcast the batch dimension of (B, 4)
    against the 3 of (B, 3, 4).
    """
    port, first = next(iter(inputs.items()))
    common = list(first.shape)
    for other, spec in inputs.items():
        if spec.dtype == "bool":
            return ShapeError(
                f"`{layer.type}` takes numbers, {name_port(other)} is bool",
                port=other,
                help="write it as an expression",
            )
        fits = len(spec.shape) == len(common) and all(
            1 in pair or pair[0] == pair[1] for pair in zip(common, spec.shape, strict=True)
        )
        if not fits:
            return ShapeError(
                f"`{layer.type}` takes inputs of one shape, {name_port(port)} is {first} "
                f"and {name_port(other)} is {spec}",
                port=other,
                help="only a dimension of size 1 is repeated" if len(spec.shape) == len(common) else None,
            )
        common = [b if a == 1 else a for a, b in zip(common, spec.shape, strict=True)]
    return None
