"""Expert parallelism: each row that enters a mixture of experts is sent to the rank that holds the expert chosen for
it, and the result is sent back. Lepikhin et al., GShard, 2020. No row is dropped. So the number of rows that a rank
receives depends on the batch. In every forward the host waits once for the device, to read how many rows to send and to
receive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from declarative_train.components.layers.modules.divided import exchange
from declarative_train.components.layers.modules.documents import is_fake
from declarative_train.components.layers.modules.grouped import permute_rows


class Peers(Protocol):
    """Interface of a process group whose ranks send rows to each other. `rank`: index of this process among the `size`
    processes."""

    rank: int
    size: int

    def exchange(self, tensor: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor: ...


class OwnExperts(nn.Module):
    """Base class of a module whose parameters all belong to experts. With an `expert` axis, it has only the experts of
    this rank.
    """


class ExpertRanks:
    """Ranks of the `expert` axis. `index`: index of this process among the `size` ranks. Rank i holds the i-th of
    `size` equal parts of the experts."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self.index, self.size = peers.rank, peers.size

    def compute(self, experts: Callable[[Tensor, Tensor], Tensor], rows: Tensor, ends: Tensor) -> Tensor:
        """Return the results (R, D) of the experts for `rows` (R, D), which are sorted by expert. Each row is sent to
        the rank that holds its expert, and the result is sent back. `ends` (E,): for each expert, the index after its
        last row. `experts(rows, ends)`: the function that computes the experts of this rank.
        """
        counts_SE = self._exchange_counts(ends)  # rows from each sender for each expert of this rank
        sent, received = self._sizes(ends, counts_SE, len(rows))
        arrived = exchange(rows, self._exchange(sent, received), self._exchange(received, sent))
        order = self._order(counts_SE, sum(received))
        back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        own_ends = counts_SE.sum(0).cumsum(0).to(torch.int32)
        y = permute_rows(experts(permute_rows(arrived, order, back), own_ends), back, order)
        return exchange(y, self._exchange(received, sent), self._exchange(sent, received))

    def _exchange_counts(self, ends: Tensor) -> Tensor:
        """Exchange with the other ranks how many rows each expert gets. Return a tensor (S, E / S): how many rows each
        of the S ranks has for each expert of this rank. `ends` (E,): for each of the E experts, the index after its
        last row on this rank."""
        counts_E = ends.long().diff(prepend=ends.new_zeros(1, dtype=torch.int64))
        each = [len(counts_E) // self.size] * self.size
        return self._peers.exchange(counts_E, each, each).view(self.size, -1)

    def _sizes(self, ends: Tensor, counts_SE: Tensor, num_rows: int) -> tuple[list[int], list[int]]:
        """Return how many rows this rank sends to each rank, and how many it receives from each. `ends` (E,): for each
        expert, the index after its last row on this rank. `counts_SE`: number of rows from each rank for each expert of
        this rank. Fake tensors have no values; for them `num_rows` rows are divided evenly."""
        if is_fake(ends):
            even = [num_rows // self.size + (rank < num_rows % self.size) for rank in range(self.size)]
            return even, even
        per_rank = ends.view(self.size, -1)[:, -1].long()
        sent = per_rank.diff(prepend=per_rank.new_zeros(1))
        found = torch.stack([sent, counts_SE.sum(1)]).tolist()
        return found[0], found[1]

    def _order(self, counts_SE: Tensor, num_rows: int) -> Tensor:
        """Return the indices (num_rows,) that sort the received rows by expert. The rows arrive sorted by sending rank
        and, for each sending rank, by expert. `counts_SE`: number of rows from each rank for each expert of this rank.
        """
        if is_fake(counts_SE):
            return torch.arange(num_rows, device=counts_SE.device)
        experts = torch.arange(counts_SE.shape[1], device=counts_SE.device).repeat(self.size)
        return experts.repeat_interleave(counts_SE.flatten(), output_size=num_rows).argsort(stable=True)

    def _exchange(self, sent: list[int], received: list[int]) -> Callable[[Tensor], Tensor]:
        return lambda rows: self._peers.exchange(rows, sent, received)

    def __deepcopy__(self, memo: dict[int, object]) -> ExpertRanks:
        return self  # process groups cannot be copied
