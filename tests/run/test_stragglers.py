"""Ranks that are slower than the others are reported when that begins, and when it ends."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from declarative_train.app.commands.status import read_stragglers
from declarative_train.engine.step.step_runner import StepRunner
from declarative_train.run import heartbeat
from declarative_train.run.heartbeat import NUM_LOOKS, Beat, Pace
from declarative_train.run.stragglers import Stragglers
from tests.engine import runs
from tests.engine.made_recipes import DEEP, WAYS, write_data

NODES = {0: "node 0 (a)", 1: "node 1 (b)", 2: "node 2 (c)"}


def pace(rank: int, *shares: float) -> Pace:
    """Return the pace of a rank that works a share of each step of a second; each share lasts as long as is looked."""
    found, busy = Pace(), 0.0
    for number in range(len(shares) * NUM_LOOKS // 10 + 1):
        found.add(Beat(rank, number, number + 1, number, False, "", 10 * number, int(busy)), float(number))
        busy += 10 * shares[min(10 * number // NUM_LOOKS, len(shares) - 1)]
    return found


def test_a_slow_rank_is_named_once_and_when_it_has_caught_up() -> None:
    stragglers = Stragglers()
    slow = {0: pace(0, 0.5), 1: pace(1, 0.9), 2: pace(2, 0.5)}
    (said,) = stragglers.find_changes(slow, NODES)
    how = "its own work takes 0.9 s of each step, that of the others 0.5 s"
    assert said == f"rank 1 (node 1 (b)) is slower than the others: {how}"
    assert stragglers.find_changes(slow, NODES) == []
    (said,) = stragglers.find_changes(slow | {1: pace(1, 0.9, 0.5)}, NODES)
    assert said == "rank 1 (node 1 (b)) is no longer slower than the others"


@pytest.mark.parametrize(
    "paces",
    [{0: pace(0, 0.5), 1: pace(1, 0.6)}, {0: pace(0, 0.02), 1: pace(1, 0.06)}, {0: pace(0, 0.5), 1: Pace()}],
    ids=["nearly as fast", "little time", "too few looks"],
)
def test_a_rank_that_is_not_slow_is_not_named(paces: dict[int, Pace]) -> None:
    assert Stragglers().find_changes(paces, {}) == []


@pytest.mark.long
def test_a_rank_that_is_slow_for_a_while_is_reported_by_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_data(tmp_path)
    (is_slow := tmp_path / "slow").touch()
    monkeypatch.setattr(heartbeat, "NUM_LOOKS", 20)
    run = StepRunner.run

    def slowly(self: StepRunner, step: int, *given: Any) -> Any:
        if is_slow.exists() and os.environ["RANK"] == "1":
            time.sleep(0.2)
        elif is_slow.exists() and any(map(read_stragglers, (tmp_path / "runs" / "made").iterdir())):
            is_slow.unlink()
        return run(self, step, *given)

    monkeypatch.setattr(StepRunner, "run", slowly)
    steps = {"training": {"epochs": None, "steps": 400}}
    done = runs.go(tmp_path, DEEP, WAYS["ddp 2"], steps, {"evaluation": None, "checkpoint": None})
    assert done.code == 0
    assert not is_slow.exists()
    assert "dtrain: warning: rank 1 is slower than the others: its own work takes 0." in capsys.readouterr().err
