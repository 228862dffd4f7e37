"""Modules with tables of learned vectors, which are looked up by indices of any integer dtype."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from declarative_train.components.layers.modules.divided import TensorRanks
from declarative_train.components.layers.modules.packed import Packed, look_up


def _indices(x: Tensor) -> Tensor:
    """Return the indices `x` in a dtype that torch accepts for indexing. int32 and int64 are unchanged; other integer
    dtypes, such as uint8 for a field of bytes, become int64.
    """
    return x if x.dtype in (torch.int64, torch.int32) else x.to(torch.int64)


class EmbeddingModule(nn.Module):
    """Module that replaces each index in an integer tensor (B, ...) by its learned vector, (B, ..., D)."""

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None) -> None:
        super().__init__()
        self.padding_idx = padding_idx
        self.weight = nn.Parameter(torch.empty(num_embeddings, embedding_dim))
        self.packed: Packed | None = None
        self.ranks: TensorRanks | None = None

    def divide(self, ranks: TensorRanks) -> None:
        """Make the module use only this rank's rows of the table. The caller replaces the parameter `weight` by these
        rows.
        """
        self.ranks = ranks

    def forward(self, x: Tensor) -> Tensor:
        if self.ranks is not None:
            return self._look_up_part(_indices(x), self.ranks)
        if self.packed is not None:
            return look_up(_indices(x), self.weight, self.packed)
        return F.embedding(_indices(x), self.weight, self.padding_idx)

    def _look_up_part(self, x: Tensor, ranks: TensorRanks) -> Tensor:
        """Return the vectors of all indices in `x`, although this rank has only some rows of the table. Each rank looks
        up the indices whose rows it has, and uses zeros for the others. The sum over the ranks then has all vectors.
        """
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
    """Module with a table of learned vectors for each of K columns. Integers (B, ..., K) become the concatenated
    vectors, (B, ..., D_1 + ... + D_K).
    """

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
    """Module that looks up a learned vector for each of T integers, and takes the mean, sum or maximum of the vectors:
    (B, T) to (B, D).
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, mode: str, padding_idx: int | None) -> None:
        super().__init__()
        self.mode = mode
        self.padding_idx = padding_idx
        self.weight = nn.Parameter(torch.empty(num_embeddings, embedding_dim))

    def forward(self, x: Tensor) -> Tensor:
        return F.embedding_bag(_indices(x), self.weight, mode=self.mode, padding_idx=self.padding_idx)
