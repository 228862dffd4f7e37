"""Gradients of stages next to each other are averaged in buckets, of which one travels while others are put together.
Ranks on GPUs leave together."""

from __future__ import annotations

import time
from typing import Any
from unittest import mock

import pytest
import torch

from declarative_train.engine.axes import replicate
from declarative_train.engine.collectives import Alone, Ranks, finish_together
from tests.engine.on_ranks import forked

SHAPES = [(5, 3), (7,), (2, 2, 2), (1,), (4, 4), (3,), (6, 2)]


class Traced(Alone):
    """One rank that notes in what order buckets begin and end."""

    def __init__(self) -> None:
        self.order: list[str] = []

    def begin_sum_(self, tensor: torch.Tensor) -> Any:
        number = sum(word.startswith("begin") for word in self.order)
        self.order.append(f"begin {number}")
        return lambda: self.order.append(f"end {number}")


def gradients(rank: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64 if at == 3 else torch.float32)
        for at, shape in enumerate(SHAPES)
    ]


def test_a_bucket_is_on_its_way_while_the_next_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicate, "BUCKET_BYTES", 1)
    ranks, found = Traced(), gradients(0)
    replicate.average_gradients(found, ranks)
    assert ranks.order[:5] == ["begin 0", "begin 1", "begin 2", "end 0", "begin 3"]
    assert [word for word in ranks.order if "end" in word] == [f"end {number}" for number in range(len(SHAPES))]
    assert all(torch.equal(one, other) for one, other in zip(found, gradients(0), strict=True))


def averaged(rank: int, size: int, num_bytes: int) -> list[torch.Tensor]:
    replicate.BUCKET_BYTES = num_bytes
    found = gradients(rank)
    replicate.average_gradients(found, Ranks())
    return found


@pytest.mark.parametrize("size", [2, 3])
def test_many_buckets_give_the_mean_of_all_ranks(size: int) -> None:
    wanted = [torch.stack(each).mean(0) for each in zip(*(gradients(rank) for rank in range(size)), strict=True)]
    for rank in forked(size, averaged, size, 1):
        torch.testing.assert_close(rank, wanted)


def waited(rank: int) -> torch.Tensor:
    with mock.patch.object(torch.cuda, "synchronize") as synchronised:
        if rank == 0:
            time.sleep(0.5)
        begun_s = time.monotonic()
        finish_together(torch.device("cuda", rank))
        synchronised.assert_called_once_with(torch.device("cuda", rank))
    return torch.tensor(time.monotonic() - begun_s)


def test_ranks_on_gpus_leave_when_all_have_done_their_work() -> None:
    first, second = forked(2, waited)
    assert second > 0.3 > first
