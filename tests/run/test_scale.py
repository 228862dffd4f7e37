"""Messages, requests and descriptors of a run of many ranks: linear in all, and constant for a rank.

Ranks on this machine pretend to be on nodes of four (in the normal suite, of two). `benchmarks/ranks.py` simulates
thousands, `tests/scale.py` writes the table in docs/performance.md.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from declarative_train.engine.checkpoints import together
from tests.engine import runs
from tests.engine.made_recipes import DEEP, write_data
from tests.scale import Counted, count, most_of


def assert_bounded(found: Counted, num_ranks: int, per_node: int) -> None:
    """Check what is the same for any number of ranks."""
    num_nodes = num_ranks // per_node
    readers = [rank for rank in range(num_ranks) if found.ranks[rank]["received"] > found.plan_bytes / 2]
    assert [rank // per_node for rank in readers] == list(range(num_nodes))  # one of each node takes the plan
    assert len(found.manifest["lists"]) == num_nodes
    assert set(found.manifest["files"]) == {".metadata", "plan.json"}
    assert sum(each["metadata"] for each in found.resumed) == num_nodes
    others = [each for rank, each in enumerate(found.ranks) if rank % per_node]
    assert {save["requests"] for each in others for save in each["saves"]} == {1}  # its file
    assert {save["stats"] for each in found.ranks[1:] for save in each["saves"]} == {0}


def test_counts_of_four_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_bounded(count(tmp_path, 4, 2, monkeypatch), 4, 2)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_counts_grow_no_faster_than_the_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {number: count(tmp_path, number, 4, monkeypatch) for number in (8, 16, 32)}
    for number, each in found.items():
        assert_bounded(each, number, 4)
    for number in (8, 16):
        assert_linear(found[number], found[2 * number], number)


def assert_linear(few: Counted, many: Counted, num_few: int) -> None:
    """Check that a rank of twice as many has as much to do, and all of them twice as much."""
    alike = [most_of(found, lambda rank: rank["received"] < few.plan_bytes / 2) for found in (few, many)]
    received = [
        max(each["received"] for each in found.ranks[1:] if each["received"] < few.plan_bytes / 2)
        for found in (few, many)
    ]
    for found in (few, many):  # rank 0 reads 85 bytes of each rank; a rank that reads the plan reads 600 more
        assert found.ranks[0]["received"] % found.plan_bytes <= 100 * len(found.ranks) + 700
    assert received[1] <= 1.1 * received[0] < few.plan_bytes / 10
    assert alike[1]["broadcast_object_list"] <= 1.1 * alike[0]["broadcast_object_list"]
    opened = [sorted(each["descriptors"] for each in found.ranks) for found in (few, many)]
    assert opened[1][num_few] <= opened[0][num_few // 2] + 2  # most ranks: those first on a node hear from others
    assert opened[1][-1] <= 2.2 * opened[0][-1]
    everything = [sum(each["received"] for each in found.ranks) for found in (few, many)]
    assert everything[1] <= 2.2 * everything[0]
    gathered = [most_of(found, lambda rank: True)["gather_object"] for found in (few, many)]
    assert gathered[1] <= 2.2 * gathered[0]
    assert few.ranks[0]["saves"][1:3] == many.ranks[0]["saves"][1:3]


@pytest.mark.long
def test_a_replica_beyond_the_most_writers_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(tmp_path)
    monkeypatch.setattr(together, "MOST_WRITERS", 3)
    hybrid = {"parallelism": {"data": {"shard": "all", "replicate": 2}}, "layout": {"gpus": 4}}
    short = {"training": {"epochs": None, "steps": 8}, "checkpoint": {"every": "4 steps", "best": None}}
    done = runs.go(tmp_path, DEEP, hybrid, short, max_steps=4)
    assert done.code == 0
    assert len(list((done.run_dir / "checkpoints" / "step_00000004").glob("*.distcp"))) == 2
    monkeypatch.setattr(together, "MOST_WRITERS", 4)
    again = runs.go(tmp_path, DEEP, hybrid, short, resume=str(done.run_dir))
    straight = runs.go(tmp_path, DEEP, hybrid, short)
    assert len(list((again.run_dir / "checkpoints" / "step_00000008").glob("*.distcp"))) == 4
    runs.assert_same_tensors(runs.last_tensors(again.run_dir), runs.last_tensors(straight.run_dir))
