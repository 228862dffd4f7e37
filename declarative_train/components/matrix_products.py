"""Matrix products of a layer, and the number of their operations as torch's flop counter counts them: two for each
multiply-add."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import NamedTuple

from declarative_train.core.tensor_spec import TensorSpec


class Product(NamedTuple):
    """Matrix product that takes `flops` operations in the forward pass. `num_graded`: how many of its two factors need
    a gradient. In the backward pass, each of these gradients takes as many operations again."""

    flops: int
    num_graded: int


class Weight(NamedTuple):
    """Parameter of a layer: its name within the layer, its shape, and whether it is trained."""

    name: str
    shape: tuple[int, ...]
    is_trained: bool


class Use(NamedTuple):
    """Use of a layer at one node: everything on which its matrix products depend. `inputs`: spec of each input.
    `output`: spec of the first output. `graded`: for each input, whether it needs a gradient. `weights`: the layer's
    parameters."""

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
        """Return a matrix product for each weight matrix of the layer: each parameter (out, *rest) with two or more
        dimensions. The product has 2 * prod(rest) operations for each element of `spec`. `spec`: output of a linear map
        or convolution, or input of a transposed convolution."""
        sides = int(any(self.graded.values()))
        return [
            Product(2 * spec.num_elements * prod(each.shape[1:]), sides + each.is_trained) for each in self.matrices
        ]
