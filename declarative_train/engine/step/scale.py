"""Scale of the loss. Only this module decides by which number a gradient is divided.

loss of a microbatch = sum over its terms of  weight x sum x dp_size / global count

sum            of the term over the microbatch
dp_size        number of ranks whose gradients torch averages (1 in the modes `single` and `dp`)
global count   valid items of the term in the global batch, over all ranks and microbatches

In fp16 there is one more factor (`LossScale`), by which the update divides the gradients again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from declarative_train.components.component import Collective
from declarative_train.engine.step.objective import Objective

if TYPE_CHECKING:
    from declarative_train.engine.step.forward_path import Chunk

GROWTH_STEPS = 2000
START = 65536.0


class Scale:
    """Factors by which the loss terms of a run are multiplied. `dp_size`: number of ranks whose gradients are averaged.
    `ranks`: ranks over which valid items are counted. `dtype`: dtype of the factors, float64 in fp64 runs, otherwise
    float32."""

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
        """Return (factors, counts) for one step, each with an element for each loss term. `factors`: scalar tensors by
        which the terms are multiplied. `counts`: numbers of valid items in the global batch. `chunks`: this rank's rows
        of the step, one chunk for each forward. `num_rows`: number of rows of the global batch, without padding."""
        if self._objective.items_per_row is None:
            return self._from_counts(chunks)
        found = self._known.get(num_rows)
        if found is None:
            found = self._known[num_rows] = self._from_rows(self._objective.items_per_row, num_rows)
        return found

    def _from_rows(self, items_per_row: Sequence[float], num_rows: int) -> tuple[list[torch.Tensor], tuple[float, ...]]:
        counts = tuple(items * num_rows for items in items_per_row)
        factors = [
            torch.full(
                (), weight * self._dp_size / count, dtype=self._dtype, device=self._device
            )  # no copy from the host
            for weight, count in zip(self._objective.weights, counts, strict=True)
        ]
        return factors, counts

    def _from_counts(self, chunks: Sequence[Chunk]) -> tuple[list[torch.Tensor], torch.Tensor]:
        with torch.no_grad():
            mine = sum_of([self._objective.counts(chunk.tensors, chunk.row_weight, chunk.num_rows) for chunk in chunks])
            counts = self._ranks.sum(mine)
            # a global batch without a valid item gives gradient 0, not nan
            factors = torch.where(counts != 0, self._weights / counts, 0.0).to(self._dtype)
            return list(factors.unbind()), counts


class LossScale:
    """Loss scale for fp16: a factor of the loss, so that small gradients do not become 0 in half precision.

    It works like torch's GradScaler, with two differences. The factor stays on the device. A step is skipped if the
    global gradient norm is not finite; this norm is equal on all ranks, so all ranks skip the same steps."""

    def __init__(self, device: torch.device) -> None:
        self.factor = torch.tensor(START, device=device)
        self._good_steps = torch.zeros((), device=device)

    def update(self, finite: torch.Tensor) -> None:
        """Halve the factor if the step was not finite; double it after 2000 finite steps in a row. `finite`: whether
        the step was finite, a scalar bool tensor."""
        good = torch.where(finite, self._good_steps + 1, 0.0)
        grows = good >= GROWTH_STEPS
        growth = torch.where(grows, 2.0, 1.0)
        self.factor = self.factor * torch.where(finite, growth, 0.5)
        self._good_steps = torch.where(grows, 0.0, good)

    def state(self) -> dict[str, float]:
        """Return the loss scale, and the number of steps since it last changed, for a checkpoint. The host waits for
        the device."""
        return {"factor": self.factor.item(), "good_steps": self._good_steps.item()}

    def load(self, state: dict[str, float]) -> None:
        self.factor.fill_(state["factor"])
        self._good_steps.fill_(state["good_steps"])


def sum_of(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
