"""Mask and row weights -> one weight per item, and the number of items.

B batch (rows, padding included), S the dimensions of an item within a row. Counts are float64: a float32 one would stop
counting at 16,777,216 tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor


def item_weight(mask: Tensor | None, row_weight: Tensor | None, rank: int, dtype: torch.dtype) -> Tensor | None:
    """What each item (B, *S), of `rank` dimensions, counts; it may have dimensions of 1 in the place of S. None: 1."""
    if row_weight is not None:
        rows = row_weight.to(dtype).reshape(-1, *[1] * (rank - 1))
        return rows if mask is None else rows * mask.to(dtype)
    return None if mask is None else mask.to(dtype)


def count_items(mask: Tensor | None, row_weight: Tensor | None, rows: int, items_per_row: int) -> Tensor:
    """The sum of all items' weights, () float64, on the device of what it is made from."""
    if mask is not None:
        weight = mask.to(torch.float64)
        if row_weight is not None:
            weight = weight * row_weight.to(torch.float64).reshape(-1, *[1] * (mask.ndim - 1))
        return weight.sum()
    if row_weight is not None:
        return row_weight.sum(dtype=torch.float64) * items_per_row
    return torch.tensor(float(rows * items_per_row), dtype=torch.float64)


def in_full(input: Tensor) -> Tensor:
    """Sums of half precision would lose what they add: float32 at least, as autocast does for losses."""
    return input if input.dtype in (torch.float32, torch.float64) else input.float()
