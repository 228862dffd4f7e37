"""Affine maps of one input (linear) and bilinear forms of two (bilinear)."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from declarative_train.components.component import Init, Layer, Port, ShapeError
from declarative_train.components.layers.default_inits import linear_bias, linear_weight
from declarative_train.components.layers.shape_checks import Inputs, dtype_of, needs_dimensions, needs_parameter_dtype
from declarative_train.components.matrix_products import Product, Use
from declarative_train.core.amounts import format_count
from declarative_train.core.cuts import CutKind, LayerCut, ParameterCut

if TYPE_CHECKING:
    from torch import nn


class Linear(Layer):
    """An affine map of the last dimension: (B, ..., in) to (B, ..., out).

    Parameters `weight` (out, in) and `bias` (out,).
    """

    type: Literal["linear"] = "linear"
    out_features: Annotated[int, Field(ge=1)] | Literal["same"]
    """Size of the last dimension of the output; `same` means the size of the input."""
    bias: bool = True
    """Add a learned vector."""

    def check(self, inputs: Inputs) -> ShapeError | None:
        return needs_dimensions(self, inputs, "(B, ..., D)", 1) or needs_parameter_dtype(self, inputs)

    def build(self, inputs: Inputs) -> nn.Module:
        from torch import nn

        width = inputs["x"].shape[-1]
        out = width if self.out_features == "same" else self.out_features
        return nn.Linear(width, out, self.bias, dtype=dtype_of(inputs["x"]))

    def init_of(self, parameter: str, inputs: Inputs) -> Init:
        if parameter == "weight":
            return linear_weight()
        if parameter == "bias":
            return linear_bias(inputs["x"].shape[-1])
        return super().init_of(parameter, inputs)

    def cut(self, kind: CutKind, inputs: Inputs, size: int) -> LayerCut | str | None:
        width = inputs["x"].shape[-1]
        out = width if self.out_features == "same" else self.out_features
        if kind == "tokens":
            return LayerCut(kind, {})
        divided = {"columns": out, "rows": width}.get(kind)
        if divided is None:
            return None
        if divided % size:
            what = format_count(divided, "output feature" if kind == "columns" else "input feature")
            return f"its {what} cannot be divided evenly over {size} ranks"
        if kind == "rows":
            return LayerCut(kind, {"weight": ParameterCut(1, (width,))})
        cut = ParameterCut(0, (out,))
        return LayerCut(kind, {"weight": cut, "bias": cut} if self.bias else {"weight": cut})

    def products(self, use: Use) -> Iterable[Product]:
        return use.each_matrix_for(use.output)


class Bilinear(Layer):
    """A bilinear form of two inputs: (B, ..., in1) and (B, ..., in2) to (B, ..., out).

    Parameters `weight` (out, in1, in2) and `bias` (out,).
    """

    ports: ClassVar[tuple[Port, ...]] = (Port("x"), Port("y"))

    type: Literal["bilinear"] = "bilinear"
    out_features: int = Field(ge=1)
    """Size of the last dimension of the output."""
    bias: bool = True
    """Add a learned vector."""

    def check(self, inputs: Inputs) -> ShapeError | None:
        for port in ("x", "y"):
            if shape_error := needs_dimensions(self, inputs, "(B, ..., D)", 1, port=port):
                return shape_error
        if inputs["x"].shape[:-1] != inputs["y"].shape[:-1]:
            return ShapeError(
                f"`bilinear` takes inputs that differ in the last dimension only, "
                f"`x` is {inputs['x']} and `y` is {inputs['y']}",
                port="y",
            )
        return needs_parameter_dtype(self, inputs)

    def build(self, inputs: Inputs) -> nn.Module:
        from declarative_train.components.layers.modules.sequences import BilinearModule

        widths = inputs["x"].shape[-1], inputs["y"].shape[-1]
        return BilinearModule(*widths, self.out_features, self.bias, dtype=dtype_of(inputs["x"]))

    def init_of(self, parameter: str, inputs: Inputs) -> Init:
        if parameter in ("weight", "bias"):
            return linear_bias(inputs["x"].shape[-1])
        return super().init_of(parameter, inputs)

    def products(self, use: Use) -> Iterable[Product]:
        """Yield the two matrix products of the layer: the first input times the weight (out, in1, in2), and that
        result times the second input.
        """
        rows = use.output.num_elements // self.out_features
        first, second = use.graded["x"], use.graded["y"]
        for each in use.matrices:
            yield Product(2 * prod(each.shape) * rows, first + each.is_trained)
            out, _, width = each.shape
            yield Product(2 * out * width * rows, second + (first or each.is_trained))
