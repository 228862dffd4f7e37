"""Shape, dtype and range of values of a tensor, known without computing it.

Legend of shape letters, used in messages and in names: B batch, T tokens (or time), D width, H heads, K head width, V
vocabulary, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, isfinite
from typing import Literal

DType = Literal["float64", "float32", "bfloat16", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"]

Interval = tuple[float, float]
"""Least and greatest value, both included."""

FLOATING: frozenset[str] = frozenset({"float64", "float32", "bfloat16", "float16"})


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape per sample (without the batch dimension 0), dtype, and range of the values of a tensor.

    The range has two forms. `num_values`: n if every value is an integer in 0..n-1 (token ids, class labels), else
    None. `bounds`: any other range, as one interval for all values or one for each entry of the last dimension. If
    `bounds` is empty and `num_values` is None, the range is unknown."""

    shape: tuple[int, ...]
    dtype: DType = "float32"
    num_values: int | None = None
    bounds: tuple[Interval, ...] = ()

    @property
    def intervals(self) -> tuple[Interval, ...]:
        """Known ranges of the values: one interval for all, or one for each entry of the last dimension. Empty if
        unknown."""
        if self.bounds or self.num_values is None:
            return self.bounds
        return ((0, self.num_values - 1),)

    @property
    def interval(self) -> Interval | None:
        """Smallest interval that contains all values, or None if it is unknown."""
        found = self.intervals
        return (min(low for low, _ in found), max(high for _, high in found)) if found else None

    def between(self, intervals: Sequence[Interval]) -> TensorSpec:
        """Return a copy whose values are in `intervals`: one interval for all values, or one for each entry of the last
        dimension. If the dtype is bool or an end is not finite, the range of the copy is unknown."""
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
        """Number of elements per sample."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    def describe(self, precision: str) -> str:
        """Return shape and dtype for a message. `precision`: the precision of the run. In a graph, float32 means the
        compute dtype of the run, so at precision fp64 it is shown as float64."""
        return f"{self} {'float64' if self.dtype == 'float32' and precision == 'fp64' else self.dtype}"

    def __str__(self) -> str:
        return f"({', '.join(['B', *map(str, self.shape)])})"


def interval_in_words(interval: Interval) -> str:
    """Return an interval as a text: `0 to 9`."""
    return f"{interval[0]:g} to {interval[1]:g}" if max(map(abs, interval)) < 1e6 else f"{interval[0]} to {interval[1]}"
