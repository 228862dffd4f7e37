"""Sums and gathered rows over the data-parallel ranks: what metrics, counts and logging need of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import distributed

from declarative_train.components.component import Collective

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class Alone(Collective):
    """One process."""

    rank, size = 0, 1

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def concatenate(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


class Ranks(Collective):
    """The ranks of a process group, by torch's collectives (gloo has no boolean sum: bool travels as uint8)."""

    def __init__(self, group: ProcessGroup | None = None) -> None:
        self._group = group
        self.rank = distributed.get_rank(group)
        self.size = distributed.get_world_size(group)

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        total = tensor.clone()
        self.sum_(total)
        return total

    def sum_(self, tensor: torch.Tensor) -> None:
        """In place."""
        if self.size == 2 and tensor.device.type == "cpu":
            self._exchange(tensor)
        else:
            distributed.all_reduce(tensor, group=self._group)

    def _exchange(self, tensor: torch.Tensor) -> None:
        """Two ranks hand each other what they have: gloo's ring sends four times as many messages, through one more
        thread. Both add the same two numbers, so both get the same sum."""
        other = torch.empty_like(tensor)
        peer = 1 - self.rank if self._group is None else distributed.get_global_rank(self._group, 1 - self.rank)
        receiving = distributed.irecv(other, peer, group=self._group)
        sending = distributed.isend(tensor, peer, group=self._group)
        assert receiving is not None
        assert sending is not None
        receiving.wait()
        sending.wait()
        tensor += other

    def concatenate(self, tensor: torch.Tensor) -> torch.Tensor:
        sizes = self._sizes(tensor)
        longest = max(sizes)
        wire = tensor.to(torch.uint8) if tensor.dtype == torch.bool else tensor
        padded = wire.new_zeros((longest, *tensor.shape[1:]))
        padded[: len(tensor)] = wire
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        distributed.all_gather(parts, padded, group=self._group)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)]).to(tensor.dtype)

    def _sizes(self, tensor: torch.Tensor) -> list[int]:
        mine = torch.tensor([len(tensor)], dtype=torch.int64, device=tensor.device)
        parts = [torch.empty_like(mine) for _ in range(self.size)]
        distributed.all_gather(parts, mine, group=self._group)
        return [int(part.item()) for part in parts]
