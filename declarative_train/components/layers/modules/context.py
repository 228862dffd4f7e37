"""Context parallelism: the positions of each sequence are divided over the ranks of the `context` axis. For attention
the ranks exchange keys and values. A sequence of T positions is divided into 2 N chunks for N ranks. Rank i has the
chunks i and 2 N - 1 - i, so that with causal attention all ranks compute equally many pairs of queries and keys.
"""

from __future__ import annotations

import torch
from torch import Tensor

from declarative_train.components.layers.modules.divided import Peers, exchange


class ContextRanks:
    """Ranks of the `context` axis: each has two ranges of positions of every sequence. The length of the sequences may
    differ from batch to batch. `in_ring`: how attention gets the keys of other ranks. True: keys are sent from rank to
    rank. False: each rank gathers all keys at once."""

    def __init__(self, peers: Peers, *, in_ring: bool = False) -> None:
        self._peers, self.in_ring = peers, in_ring

    def firsts(self, chunk: int, rank: int | None = None) -> tuple[int, int]:
        """Return the first position of each of the two chunks of a rank, counted in the whole sequence. `chunk`: number
        of positions of a chunk. `rank`: index of the rank; None means this rank.
        """
        rank = self._peers.rank if rank is None else rank
        return rank * chunk, (2 * self._peers.size - 1 - rank) * chunk

    def whole_length(self, x: Tensor) -> int:
        """Return the length T of a sequence, given this rank's part `x` (B, T / N, ...)."""
        return x.shape[1] * self._peers.size

    def owners(self) -> list[int]:
        """Return the ranks of the `context` axis (indices) in the order in which this rank uses their keys. The first
        is this rank itself."""
        return [(self._peers.rank - step) % self._peers.size for step in range(self._peers.size)]

    def shift(self, x: Tensor, owner: int | None = None) -> Tensor:
        """Send `x` to the next rank of the ring, and return the tensor that arrives from the previous rank. `owner`:
        the rank that had `x` at the start. If `owner` is the next rank, `x` has been on all ranks: nothing is sent, and
        `x` is returned. If `owner` is None, `x` is always sent.
        """
        rank, size = self._peers.rank, self._peers.size
        if owner == (rank + 1) % size:
            return x
        sent, received = [0] * size, [0] * size
        sent[(rank + 1) % size] = received[(rank - 1) % size] = len(x)
        return self._peers.exchange(x, sent, received)

    def places(self, num_own: int, device: torch.device) -> Tensor:
        """Return, for each token of this rank, its position in the whole sequence. `num_own`: number of tokens of this
        rank, which is the length of the result."""
        chunk = num_own // 2
        return torch.cat([torch.arange(first, first + chunk, device=device) for first in self.firsts(chunk)])

    def take(self, whole: Tensor) -> Tensor:
        """Return this rank's part (B, T / N, ...) of `whole` (B, T, ...)."""
        chunk = whole.shape[1] // (2 * self._peers.size)
        return torch.cat([whole[:, first : first + chunk] for first in self.firsts(chunk)], 1)

    def gather(self, x: Tensor) -> Tensor:
        """Return all positions (B, T, ...), given this rank's part `x` (B, T / N, ...). In the backward, the gradients
        of all ranks are summed, and each rank gets the sum for its own positions.
        """
        return exchange(x, self._gather, self._sum)

    def add(self, x: Tensor) -> Tensor:
        """Return the sum of `x` over the ranks. In the backward, the gradients are summed over the ranks too, because
        the loss of each rank depends on the sum."""
        return exchange(x, self._peers.sum, self._peers.sum)

    def gather_values(self, x: Tensor) -> Tensor:
        """Return all positions (B, T, ...) of integers or booleans, given this rank's part `x` (B, T / N, ...). Not
        differentiable.
        """
        return self._gather(x.to(torch.uint8)).bool() if x.dtype == torch.bool else self._gather(x)

    def _gather(self, x: Tensor) -> Tensor:
        # (B, ranks, 2, chunk, ...): the second chunks of the ranks follow the first ones in descending order
        parts = self._peers.gather_tokens(x).reshape(len(x), -1, 2, x.shape[1] // 2, *x.shape[2:])
        return torch.cat([parts[:, :, 0], parts[:, :, 1].flip(1)], 1).flatten(1, 2)

    def _sum(self, gradient: Tensor) -> Tensor:
        half = self._peers.size
        parts = gradient.reshape(len(gradient), 2 * half, -1, *gradient.shape[2:])
        return self._peers.sum_tokens(torch.stack([parts[:, :half], parts[:, half:].flip(1)], 2).flatten(1, 3))

    def __deepcopy__(self, memo: dict[int, object]) -> ContextRanks:
        return self  # process groups cannot be copied
