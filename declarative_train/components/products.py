"""The matrix products of a layer at work: operations as torch's own counter counts them, two for each multiply-add."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import NamedTuple

from declarative_train.core.tensor_spec import TensorSpec


class Product(NamedTuple):
    """`num_graded`: how many of the two sides want a gradient; for each, the backward multiplies as much again."""

    flops: int
    num_graded: int


class Weight(NamedTuple):
    """A parameter by its name within the layer."""

    name: str
    shape: tuple[int, ...]
    is_trained: bool


class Use(NamedTuple):
    """One sample on its way through a layer: specs by port, the layer's first output, the ports along which a gradient
    goes back, and the layer's parameters."""

    inputs: Mapping[str, TensorSpec]
    output: TensorSpec
    graded: Mapping[str, bool]
    weights: tuple[Weight, ...]

    @property
    def matrices(self) -> list[Weight]:
        """The weights with two or more dimensions."""
        return [each for each in self.weights if len(each.shape) > 1]

    @property
    def is_inner_graded(self) -> bool:
        """Whether what the layer computes on its way wants a gradient."""
        return any(self.graded.values()) or any(each.is_trained for each in self.weights)

    def each_matrix_for(self, spec: TensorSpec) -> list[Product]:
        """Every number of `spec` meets the weights behind the first dimension of each matrix: in the result of a linear
        map or a convolution, in the input of a transposed one."""
        sides = int(any(self.graded.values()))
        return [
            Product(2 * spec.num_elements * prod(each.shape[1:]), sides + each.is_trained) for each in self.matrices
        ]
