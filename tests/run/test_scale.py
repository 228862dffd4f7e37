"""Messages, requests and descriptors of a run of many ranks: linear in all, and constant for a rank.

Ranks on this machine pretend to be on nodes of four (in the normal suite, of two). `benchmarks/ranks.py` simulates
thousands.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from declarative_train.engine.checkpoints import together
from tests.engine import runs
from tests.engine.made_recipes import DEEP, merged, write_data, write_recipe
from tests.run.test_torchrun import meeting_place
from tests.started import finish, start

LIMIT_S = 280


@dataclass(frozen=True, slots=True)
class Counted:
    """Counts of each rank, of a run and of one that resumed it, and the manifest of its last checkpoint."""

    ranks: list[dict[str, Any]]
    resumed: list[dict[str, Any]]
    manifest: dict[str, Any]
    plan_bytes: int


def count(directory: Path, num_ranks: int, per_node: int, monkeypatch: pytest.MonkeyPatch) -> Counted:
    folder = directory / f"of_{num_ranks}"
    folder.mkdir()
    write_data(folder)
    layout = {"gpus": None, "nodes": num_ranks // per_node, "gpus_per_node": per_node}
    sizes = {"training": {"global_batch_size": 32, "epochs": None, "steps": 12}}
    saves = {"checkpoint": {"every": "3 steps", "keep": 1, "best": None, "background": False}, "evaluation": None}
    recipe = write_recipe(folder, merged(merged(DEEP, {"parallelism": "fsdp", "layout": layout}), sizes | saves))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("WORLD_SIZE", str(num_ranks))
    monkeypatch.setenv("COUNTED_PER_NODE", str(per_node))
    found = []
    for name, words in (("counts", ()), ("resumed", ("--resume", "--set", "training.steps=13"))):
        counts = folder / name
        counts.mkdir()
        monkeypatch.setenv("COUNTS", str(counts))
        meeting_place(monkeypatch)
        ranks = []
        for rank in range(num_ranks):
            monkeypatch.setenv("RANK", str(rank))
            monkeypatch.setenv("LOCAL_RANK", str(rank % per_node))
            ranks.append(start("tests.counted_rank", "run", str(recipe), "--quiet", *words))
        said = [finish(each, LIMIT_S) for each in ranks]
        assert [code for code, _, _ in said] == [0] * num_ranks, "".join(errors for _, _, errors in said)
        found.append([json.loads((counts / f"{rank}.json").read_text()) for rank in range(num_ranks)])
    (run,) = (folder / "runs" / "made").iterdir()
    manifest = json.loads((run / "checkpoints" / "step_00000013" / "manifest.json").read_text())
    return Counted(found[0], found[1], manifest, os.path.getsize(run / "plan.json"))


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
    few, many = (count(tmp_path, number, 4, monkeypatch) for number in (16, 32))
    for found, num_ranks in ((few, 16), (many, 32)):
        assert_bounded(found, num_ranks, 4)
    alike = [most_of(found, lambda rank: rank["received"] < few.plan_bytes / 2) for found in (few, many)]
    assert alike[1]["received"] <= 1.1 * alike[0]["received"] < few.plan_bytes / 10
    assert alike[1]["broadcast_object_list"] <= 1.1 * alike[0]["broadcast_object_list"]
    opened = [sorted(each["descriptors"] for each in found.ranks) for found in (few, many)]
    assert opened[1][16] <= opened[0][8] + 2  # of most ranks: those that are first on a node hear from others
    assert opened[1][-1] <= 2.2 * opened[0][-1]
    everything = [sum(each["received"] for each in found.ranks) for found in (few, many)]
    assert everything[1] <= 2.2 * everything[0]
    gathered = [most_of(found, lambda rank: True)["gather_object"] for found in (few, many)]
    assert gathered[1] <= 2.2 * gathered[0]
    assert few.ranks[0]["saves"][1:3] == many.ranks[0]["saves"][1:3]


def most_of(found: Counted, is_meant: Callable[[dict[str, Any]], bool]) -> dict[str, int]:
    """Return the largest count of each kind among some of the ranks."""
    meant = [each | each["largest"] for each in found.ranks if is_meant(each)]
    return {name: max(each[name] for each in meant) for name in ("received", "gather_object", "broadcast_object_list")}


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
