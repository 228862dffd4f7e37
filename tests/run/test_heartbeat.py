"""Ranks that are stuck: found by their beats, and named with what the others wait for."""

from __future__ import annotations

import time

import pytest

from declarative_train.run import heartbeat
from declarative_train.run.heartbeat import Beat, Pace, describe_stuck
from tests.engine.on_ranks import forked


def pace(rank: int, step: int, collective: str = "", *, silent: bool = False) -> Pace:
    """A rank that made a step a second, and then none for 90 s."""
    found = Pace()
    for second in range(step + 1):
        found.add(Beat(rank, second, second, second, False, ""), float(second))
    number = step if silent else step + 1
    found.add(Beat(rank, number, step, step, False, collective), step + 90.0)
    return found


@pytest.mark.parametrize(
    ("paces", "said"),
    [
        (
            [pace(0, 7, "all_reduce of 3 elements (number 9)"), pace(1, 7, silent=True)],
            "rank 1 (node 1 (b)) did not answer in step 7 for 90 s; rank 0 waits in step 7, all_reduce of 3 elements "
            "(number 9)",
        ),
        (
            [pace(0, 7, "all_reduce of 3 elements (number 9)"), pace(1, 7)],
            "rank 1 (node 1 (b)) made no progress in step 7 for 90 s; rank 0 waits in step 7, all_reduce of 3 elements "
            "(number 9)",
        ),
        (
            [pace(0, 8, "broadcast of 1 elements (number 4)"), pace(1, 7, "all_reduce of 3 elements (number 9)")],
            "rank 1 (node 1 (b)) made no progress in step 7 for 90 s; rank 0 waits in step 8, broadcast of 1 elements "
            "(number 4)",
        ),
        ([pace(0, 7), pace(1, 7)], "no rank made progress for 90 s"),
    ],
    ids=["stopped", "in no collective", "behind", "all"],
)
def test_the_rank_that_others_wait_for_is_named(paces: list[Pace], said: str) -> None:
    assert describe_stuck(dict(enumerate(paces)), {0: "node 0 (a)", 1: "node 1 (b)"}) == said


def test_the_limit_follows_the_steps_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTRAIN_TIMEOUT_S", "600")
    assert Pace().warn_s == 568, "before the first step"
    assert pace(0, 5).warn_s == 60, "ten steps of a second are less"
    slow = Pace()
    for step in range(5):
        slow.add(Beat(0, step, step, step, False, ""), 9.0 * step)
    assert slow.warn_s == 90


def test_a_checkpoint_is_progress() -> None:
    found = Pace()
    for second in range(100):
        found.add(Beat(0, second, 7, 7, second > 50, ""), float(second))
    assert found.idle_s == 0


def last_collective(rank: int) -> str:
    import torch
    from torch import distributed

    if rank == 0:
        work = distributed.all_reduce(torch.ones(2, 3), async_op=True)
        time.sleep(0.5)
        found = heartbeat._describe_collective()
        work.wait()
        return found
    time.sleep(1.5)
    distributed.all_reduce(torch.ones(2, 3))
    deadline_s = time.monotonic() + 60
    while heartbeat._describe_collective() and time.monotonic() < deadline_s:  # a thread of torch records the end
        time.sleep(0.02)
    return heartbeat._describe_collective()


def test_a_rank_that_waits_names_its_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "64")
    waits, done = forked(2, last_collective)
    assert waits == "all_reduce of 2x3 elements (number 1)"
    assert done == ""
