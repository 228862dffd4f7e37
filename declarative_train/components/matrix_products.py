"""Matrix products of a layer: operations as torch's own counter counts them, two for each multiply-add."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import NamedTuple

from declarative_train.core.tensor_spec import TensorSpec


class Product(NamedTuple):
    """A matrix product. `num_graded`: how many of its two operands need a gradient; each adds as many operations to the
    backward."""

    flops: int
    num_graded: int


class Weight(NamedTuple):
    """A parameter by its name within the layer."""

    name: str
    shape: tuple[int, ...]
    is_trained: bool


class Use(NamedTuple):
    """Use of a layer: specs by input, the layer's first output, whether a gradient flows back through each input,
    and the layer's parameters."""

    inputs: Mapping[str, TensorSpec]
    output: TensorSpec
    graded: Mapping[str, bool]
    weights: tuple[Weight, ...]

    @property
    def matrices(self) -> list[Weight]:
        """Weights with two or more dimensions."""
        return [each for each in self.weights if len(each.shape) > 1]

    @property
    def is_inner_graded(self) -> bool:
        """True if the layer's intermediate results need a gradient."""
        return any(self.graded.values()) or any(each.is_trained for each in self.weights)

    def each_matrix_for(self, spec: TensorSpec) -> list[Product]:
        """Return a product for each of the layer's matrices: each element of `spec` takes one multiplication per
        element of all dimensions of the matrix but the first. `spec`: the result of a linear map or a convolution, or
        the input of a transposed convolution."""
        sides = int(any(self.graded.values()))
        return [
            Product(2 * spec.num_elements * prod(each.shape[1:]), sides + each.is_trained) for each in self.matrices
        ]
