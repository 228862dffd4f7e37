"""Modules of embedding tables, which are looked up by integers of any integer dtype."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from declarative_train.components.layers.modules.divided import TensorRanks
from declarative_train.components.layers.modules.packed import Packed, look_up


def _indices(x: Tensor) -> Tensor:
    """Return `x` as int64, or unchanged if torch can use it as index (int32, int64); a field of bytes may be uint8."""
    return x if x.dtype in (torch.int64, torch.int32) else x.to(torch.int64)


class EmbeddingModule(nn.Module):
    """Embedding of (B, ...) integers to (B, ..., D)."""

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None) -> None:
        super().__init__()
        self.padding_idx = padding_idx
        self.weight = nn.Parameter(torch.empty(num_embeddings, embedding_dim))
        self.packed: Packed | None = None
        self.ranks: TensorRanks | None = None

    def divide(self, ranks: TensorRanks) -> None:
        """Keep only this rank's rows of the table from now on; the caller replaces `weight`."""
        self.ranks = ranks

    def forward(self, x: Tensor) -> Tensor:
        if self.ranks is not None:
            return self._look_up_part(_indices(x), self.ranks)
        if self.packed is not None:
            return look_up(_indices(x), self.weight, self.packed)
        return F.embedding(_indices(x), self.weight, self.padding_idx)

    def _look_up_part(self, x: Tensor, ranks: TensorRanks) -> Tensor:
        """Return the vectors of all numbers: each rank looks up the numbers of its own rows, with zeros for others, and
        the results are summed over the ranks."""
        rows = self.weight.shape[0]
        first = ranks.index * rows
        place = x - first
        is_here = (place >= 0) & (place < rows)
        padding = None if self.padding_idx is None else self.padding_idx - first
        padding = padding if padding in range(rows) else None
        place = torch.where(is_here, place, 0)
        found = (
            F.embedding(place, self.weight, padding)
            if self.packed is None
            else look_up(place, self.weight, self.packed)
        )
        return ranks.add(found * is_here.unsqueeze(-1))


class EmbeddingsModule(nn.Module):
    """Embedding of (B, ..., K) integers to (B, ..., D_0 + ... + D_K-1), by a table per column."""

    def __init__(self, num_embeddings: Sequence[int], embedding_dims: Sequence[int]) -> None:
        super().__init__()
        self.tables = nn.ParameterList(
            nn.Parameter(torch.empty(rows, width)) for rows, width in zip(num_embeddings, embedding_dims, strict=True)
        )

    def forward(self, x: Tensor) -> Tensor:
        columns = _indices(x).unbind(-1)
        found = [F.embedding(column, table) for column, table in zip(columns, self.tables, strict=True)]
        return torch.cat(found, dim=-1)


class EmbeddingBagModule(nn.Module):
    """Embedding of (B, T) integers to (B, D): the rows looked up, reduced over T."""

    def __init__(self, num_embeddings: int, embedding_dim: int, mode: str, padding_idx: int | None) -> None:
        super().__init__()
        self.mode = mode
        self.padding_idx = padding_idx
        self.weight = nn.Parameter(torch.empty(num_embeddings, embedding_dim))

    def forward(self, x: Tensor) -> Tensor:
        return F.embedding_bag(_indices(x), self.weight, mode=self.mode, padding_idx=self.padding_idx)
