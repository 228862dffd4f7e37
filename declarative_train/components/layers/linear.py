"""An affine map."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from declarative_train.components.component import Init, Layer, Misfit
from declarative_train.components.layers.fit import Inputs, dtype_of, needs_dimensions, needs_parameter_dtype
from declarative_train.components.layers.starts import linear_bias, linear_weight
from declarative_train.components.products import Product, Use

if TYPE_CHECKING:
    from torch import nn


class Linear(Layer):
    """An affine map of the last dimension: (B, ..., in) to (B, ..., out).

    Parameters `weight` (out, in) and `bias` (out,).
    """

    type: Literal["linear"] = "linear"
    out_features: int = Field(ge=1)
    """Size of the last dimension of the output."""
    bias: bool = True
    """Add a learned vector."""

    def check(self, inputs: Inputs) -> Misfit | None:
        return needs_dimensions(self, inputs, "(B, ..., D)", 1) or needs_parameter_dtype(self, inputs)

    def build(self, inputs: Inputs) -> nn.Module:
        from torch import nn

        return nn.Linear(inputs["x"].shape[-1], self.out_features, self.bias, dtype=dtype_of(inputs["x"]))

    def init_of(self, parameter: str, inputs: Inputs) -> Init:
        if parameter == "weight":
            return linear_weight()
        if parameter == "bias":
            return linear_bias(inputs["x"].shape[-1])
        return super().init_of(parameter, inputs)

    def products(self, use: Use) -> Iterable[Product]:
        return use.each_matrix_for(use.output)
