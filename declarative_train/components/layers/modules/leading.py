"""Sequences with dimensions between the batch and the time, (B, ..., T, D), as rows of a batch and back again."""

from __future__ import annotations

from torch import Tensor


def as_rows(x: Tensor) -> Tensor:
    """(B, ..., T, D) -> (N, T, D), N sequences; (B, T, D) as it is."""
    return x if x.dim() == 3 else x.flatten(0, -3)


def placed(y: Tensor, x: Tensor) -> Tensor:
    """What came of the rows of `x`, (N, ...), at the places of `x` (B, ..., T, D)."""
    return y if x.dim() == 3 else y.reshape(*x.shape[:-2], *y.shape[1:])


def mask_as_rows(mask: Tensor | None, x: Tensor) -> Tensor | None:
    """(B, ..., S) or (B, ..., T, S) -> (N, S) or (N, T, S) for the rows of `x`; a 1 serves all along its dimension."""
    if mask is None or x.dim() == 3:
        return mask
    leading = x.shape[:-2]
    return mask.expand(*leading, *mask.shape[len(leading) :]).flatten(0, len(leading) - 1)
