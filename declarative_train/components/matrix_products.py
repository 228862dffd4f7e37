"""Matrix products of a layer, and the number of their operations as torch's flop counter counts them: two for each
multiply-add."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import NamedTuple

from declarative_train.core.tensor_spec import TensorSpec


class Product(NamedTuple):
    """Matrix product with `flops` operations in the forward pass. `num_graded`: how many of its two factors need a
    gradient. Each of these gradients takes another `flops` operations in the backward pass."""

    flops: int
    num_graded: int


class Weight(NamedTuple):
    """Parameter of a layer: its name within the layer, its shape, and whether it is trained."""

    name: str
    shape: tuple[int, ...]
    is_trained: bool


class Use(NamedTuple):
    """Inputs, output and weights of a layer at one node, which determine its matrix products. `output`: spec of the
    first output. `graded`: for each input, whether it needs a gradient."""

    inputs: Mapping[str, TensorSpec]
    output: TensorSpec
    graded: Mapping[str, bool]
    weights: tuple[Weight, ...]

    @property
    def matrices(self) -> list[Weight]:
        """Parameters of the layer that have two or more dimensions."""
        return [each for each in self.weights if len(each.shape) > 1]

    @property
    def is_inner_graded(self) -> bool:
        """True if intermediate results of the layer need a gradient."""
        return any(self.graded.values()) or any(each.is_trained for each in self.weights)

    def each_matrix_for(self, spec: TensorSpec) -> list[Product]:
        """Return one product for each parameter of the layer with two or more dimensions, (out, *rest). A product has 2
        * prod(rest) operations per element of `spec`. `spec`: the output of a linear map or convolution, or the input
        of a transposed convolution."""
        sides = int(any(self.graded.values()))
        return [
            Product(2 * spec.num_elements * prod(each.shape[1:]), sides + each.is_trained) for each in self.matrices
        ]
