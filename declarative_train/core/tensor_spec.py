"""What is known of a tensor before there is one.

Legend of shape letters, used in messages and in names: B batch, T tokens (or time), D width, H heads, K head width,
V vocabulary, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, isfinite
from typing import Literal

DType = Literal["float64", "float32", "bfloat16", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"]

Interval = tuple[float, float]
"""From the least to the greatest value, both included."""

FLOATING: frozenset[str] = frozenset({"float64", "float32", "bfloat16", "float16"})


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape per sample (the batch, dimension 0, is left out), dtype, and for integers the range of the values.

    `num_values` is n when every value is known to lie in 0..n-1 (token ids, class labels), else None. `bounds` holds
    what is known beyond it: an interval for all values, or one for each entry of the last dimension; none: nothing.
    """

    shape: tuple[int, ...]
    dtype: DType = "float32"
    num_values: int | None = None
    bounds: tuple[Interval, ...] = ()

    @property
    def intervals(self) -> tuple[Interval, ...]:
        """What is known of the values: one interval, one for each entry of the last dimension, or none."""
        if self.bounds or self.num_values is None:
            return self.bounds
        return ((0, self.num_values - 1),)

    @property
    def interval(self) -> Interval | None:
        """Of all values together."""
        found = self.intervals
        return (min(low for low, _ in found), max(high for _, high in found)) if found else None

    def between(self, intervals: Sequence[Interval]) -> TensorSpec:
        """The same tensor with these intervals known, one or one for each entry of the last dimension."""
        bounds: tuple[Interval, ...] = tuple(intervals)
        if self.dtype == "bool" or not all(isfinite(end) for each in bounds for end in each):
            return replace(self, num_values=None, bounds=())
        if len(set(bounds)) == 1:
            bounds = bounds[:1]
        if self.is_floating:
            return replace(self, num_values=None, bounds=bounds)
        bounds = tuple((ceil(low), floor(high)) for low, high in bounds)
        least, greatest = min(low for low, _ in bounds), int(max(high for _, high in bounds))
        known = greatest + 1 if least >= 0 else None
        return replace(self, num_values=known, bounds=() if bounds == ((0, greatest),) else bounds)

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


def interval_in_words(interval: Interval) -> str:
    """`0 to 9`."""
    return f"{interval[0]:g} to {interval[1]:g}" if max(map(abs, interval)) < 1e6 else f"{interval[0]} to {interval[1]}"
