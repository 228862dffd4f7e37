"""Ranks that share one GPU, over gloo: what gloo lacks for tensors of a GPU goes by way of the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import distributed, nn
from torch.distributed.pipelining import schedules

from declarative_train.engine.axes import shard


@contextmanager
def shared_device() -> Iterator[None]:
    """For this process and those that it forks: FSDP adds up where it would average, pipelines send CPU tensors."""
    fully_shard = shard.fully_shard

    def summing(modules: nn.Module | list[nn.Module], **settings: Any) -> Any:
        sharded = fully_shard(modules, **settings)
        for each in sharded if isinstance(sharded, list) else [sharded]:
            each.set_force_sum_reduction_for_comms(True)
        return sharded

    with mock.patch.object(shard, "fully_shard", summing), mock.patch.object(schedules, "_batch_p2p", over_the_cpu):
        yield


class Arrival:
    """What torch waits for: then the tensor has come, or has gone."""

    def __init__(self, work: Any, buffer: torch.Tensor, into: torch.Tensor | None) -> None:
        self._work, self._buffer, self._into = work, buffer, into

    def wait(self) -> None:
        self._work.wait()
        if self._into is not None:
            self._into.copy_(self._buffer)


def over_the_cpu(operations: list[Any], desc: str | None = None) -> list[Arrival]:
    found = []
    for each in operations:
        sends = each.op is distributed.isend
        buffer = each.tensor.detach().cpu().clone() if sends else torch.empty_like(each.tensor, device="cpu")
        ends = {"group_dst": each.group_peer} if sends else {"group_src": each.group_peer}
        work = each.op(buffer, group=each.group, tag=each.tag, **ends)
        found.append(Arrival(work, buffer, None if sends else each.tensor.detach()))
    return found
