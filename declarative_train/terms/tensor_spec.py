"""What is known of a tensor before there is one.

Legend of shape letters, used in messages and in names: B batch, T tokens (or time), D width, H heads, K head width,
V vocabulary, C channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DType = Literal["float64", "float32", "bfloat16", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"]

FLOATING: frozenset[str] = frozenset({"float64", "float32", "bfloat16", "float16"})


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape per sample (the batch, dimension 0, is left out), dtype, and for integers the range of the values.

    `num_values` is n when every value is known to lie in 0..n-1 (token ids, class labels), else None.
    """

    shape: tuple[int, ...]
    dtype: DType = "float32"
    num_values: int | None = None

    @property
    def is_floating(self) -> bool:
        return self.dtype in FLOATING

    @property
    def num_elements(self) -> int:
        """Elements per sample."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    def said(self, precision: str) -> str:
        """With its dtype, for people. In a graph float32 stands for what the run computes in (`graph/lower.py`)."""
        return f"{self} {'float64' if self.dtype == 'float32' and precision == 'fp64' else self.dtype}"

    def __str__(self) -> str:
        return f"({', '.join(['B', *map(str, self.shape)])})"
