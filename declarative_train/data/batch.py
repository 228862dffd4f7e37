"""A batch: what one rank feeds to one forward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import torch


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of one rank for one forward.

    tensors      by field name, each (R, ...); R includes padding, which stands last
    num_rows     real rows; 0 on a rank that got none (then R is 1 or, padded to full, microbatch_size)
    row_weight   (R,) float32, 1 then 0; None when every row is real
    sample_ids   (num_rows,) int64, positions in the set's own order
    """

    tensors: dict[str, torch.Tensor]
    num_rows: int
    row_weight: torch.Tensor | None
    sample_ids: np.ndarray
