"""Linear layers that are divided over the ranks of the `tensor` axis."""

from __future__ import annotations

from torch import Tensor, nn

from declarative_train.components.layers.modules.divided import TensorRanks
from declarative_train.components.layers.modules.packed import Packed, product


class ColumnLinear(nn.Linear):
    """Linear layer that computes this rank's part of the output features: (B, ..., in) to (B, ..., out / size) for
    `size` ranks."""

    def __init__(self, linear: nn.Linear, ranks: TensorRanks) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features // ranks.size
        self.weight, self.bias, self._ranks = linear.weight, linear.bias, ranks
        self.packed: Packed | None = getattr(linear, "packed", None)

    def forward(self, input: Tensor) -> Tensor:
        return product(self._ranks.enter(input), self.weight, self.bias, self.packed)


class GatheredLinear(ColumnLinear):
    """Linear layer from (B, ..., in) to (B, ..., out). It computes this rank's part of the output features, and gathers
    those of the other ranks."""

    def forward(self, input: Tensor) -> Tensor:
        return self._ranks.join(super().forward(input))


class RowLinear(ColumnLinear):
    """Linear layer that uses this rank's part of the input features, and sums the results over the ranks: (B, ..., in /
    size) to (B, ..., out) for `size` ranks. Every rank has the whole bias, and adds it after the sum.
    """

    def __init__(self, linear: nn.Linear, ranks: TensorRanks) -> None:
        super().__init__(linear, ranks)
        self.in_features, self.out_features = linear.in_features // ranks.size, linear.out_features

    def forward(self, input: Tensor) -> Tensor:
        y = self._ranks.add(product(input, self.weight, None, self.packed))
        return y if self.bias is None else y + self.bias


_LINEARS = {"columns": ColumnLinear, "vocabulary": ColumnLinear, "gathered": GatheredLinear, "rows": RowLinear}


def divide_linear(linear: nn.Linear, kind: str, ranks: TensorRanks) -> nn.Linear:
    """Return the layer that computes this rank's part of `linear`. Its parameters are still whole; the caller replaces
    them by their parts. `kind`: how the layer is divided (`LayerCut.kind`).

    A layer with a method `divide`, such as one with an adapter, divides itself and is returned. With "heads", `linear`
    is returned unchanged, because the attention layer around it communicates.
    """
    if callable(divide := getattr(linear, "divide", None)):
        divide(kind, ranks)
        return linear
    return linear if kind == "heads" else _LINEARS[kind](linear, ranks)
