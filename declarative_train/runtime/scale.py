"""The one place that decides what a gradient is divided by.

    loss of a microbatch = sum over its terms of  weight x sum x dp_size / global count

where `dp_size` is the number of ranks whose gradients torch averages (1 in `single` and `dp`) and the count is that of
the whole global batch: all ranks, accumulation chunks and microbatches. Nothing else is scaled anywhere.

Counts that depend on the values (ignored targets, masks, class weights) are added up over the ranks, once per step, in
float64, before the first backward; all others are known from the number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from declarative_train.components.component import Collective
from declarative_train.runtime.objective import Objective

if TYPE_CHECKING:
    from declarative_train.runtime.passage import Chunk


class Scale:
    """`of` gives the factors of a step. `dtype` is that of the sums: float64 for fp64, else float32."""

    def __init__(
        self, objective: Objective, dp_size: int, ranks: Collective, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._objective = objective
        self._dp_size = dp_size
        self._ranks = ranks
        self._device = device
        self._dtype = dtype
        self._known: dict[int, tuple[list[torch.Tensor], tuple[float, ...]]] = {}
        weights = torch.tensor(objective.weights, dtype=torch.float64, device=device)
        self._weights = weights * dp_size

    def of(self, chunks: Sequence[Chunk], num_rows: int) -> tuple[list[torch.Tensor], Sequence[float] | torch.Tensor]:
        """(L scalars to multiply the sums by, L global counts). `num_rows`: real rows of the global batch."""
        if self._objective.items_per_row is None:
            return self._counted(chunks)
        found = self._known.get(num_rows)
        if found is None:
            found = self._known[num_rows] = self._from_rows(self._objective.items_per_row, num_rows)
        return found

    def _from_rows(self, items_per_row: Sequence[float], num_rows: int) -> tuple[list[torch.Tensor], tuple[float, ...]]:
        counts = tuple(items * num_rows for items in items_per_row)
        factors = [
            torch.full(
                (), weight * self._dp_size / count, dtype=self._dtype, device=self._device
            )  # no copy to wait for
            for weight, count in zip(self._objective.weights, counts, strict=True)
        ]
        return factors, counts

    def _counted(self, chunks: Sequence[Chunk]) -> tuple[list[torch.Tensor], torch.Tensor]:
        with torch.no_grad():
            mine = sum_of([self._objective.counts(chunk.tensors, chunk.row_weight, chunk.num_rows) for chunk in chunks])
            counts = self._ranks.sum(mine)
            # a global batch without a single valid item gives no gradient, and not nan
            factors = torch.where(counts != 0, self._weights / counts, 0.0).to(self._dtype)
            return list(factors.unbind()), counts


def sum_of(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
