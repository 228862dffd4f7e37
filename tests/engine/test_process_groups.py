"""Every process group of a run has the run's timeout: a lost rank is reported, not waited for."""

from __future__ import annotations

import ast
import os
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch import distributed

import declarative_train
from declarative_train.components.layers.sample_groups import make_process_groups
from declarative_train.engine.collectives import MeshPosition, make_group
from declarative_train.plan.layout import LayoutPlan
from declarative_train.run import processes
from tests.engine.made_recipes import DEEP, WAYS, compiled, merged, write_data
from tests.engine.on_ranks import forked

LIMIT_S = 60  # of the world that `forked` makes
MAKERS = {"init_device_mesh", "init_process_group", "new_group", "new_subgroups", "split_group"}


def found_timeouts(rank: int, layout: LayoutPlan) -> tuple[list[timedelta], list[int], torch.Tensor]:
    """Of all groups of this rank; its data-parallel ranks; and the sum of their numbers."""
    place = MeshPosition(layout, torch.device("cpu"))
    make_process_groups([2], place.data_ranks, make_group)
    groups = list(distributed.distributed_c10d._world.pg_map)
    limits = [group._get_backend(torch.device("cpu")).options._timeout for group in groups]
    return limits, list(place.data_ranks), place.data.sum(torch.tensor(float(rank)))


@pytest.mark.parametrize(
    ("way", "num_groups", "data_ranks"),
    [
        ("fsdp 2", 2, [[0, 1]] * 2),
        ("hybrid 2 x 2", 4, [[0, 1, 2, 3]] * 4),
        ("pipeline 2 x fsdp 2", 4, [[0, 1], [0, 1], [2, 3], [2, 3]]),
    ],
)
def test_every_group_has_the_timeout_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, num_groups: int, data_ranks: list[list[int]]
) -> None:
    monkeypatch.setenv("DTRAIN_TIMEOUT_S", str(LIMIT_S))
    write_data(tmp_path)
    layout = compiled(tmp_path, merged(DEEP, WAYS[way])).layout
    with torch.serialization.safe_globals([timedelta]):
        found = forked(len(data_ranks), found_timeouts, layout)
    for (limits, ranks, total), wanted in zip(found, data_ranks, strict=True):
        assert limits == [timedelta(seconds=LIMIT_S)] * num_groups
        assert ranks == wanted
        assert total == sum(wanted)


def test_no_group_is_made_without_a_timeout() -> None:
    root = Path(declarative_train.__file__).parent
    texts = {path.name: path.read_text() for path in root.rglob("*.py")}
    calls = [
        (name, node)
        for name, text in texts.items()
        if any(maker in text for maker in MAKERS)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", None)) in MAKERS
    ]
    assert len(calls) >= 4
    for name, call in calls:
        if [ast.unparse(each) for each in call.args] == ["'fake'"]:
            continue
        assert {word.arg for word in call.keywords} & {"timeout", None}, f"{name}:{call.lineno}"


def count_connections(rank: int, num_ranks: int, most_in_mesh: int, path: str) -> int:
    """Return how many descriptors the process group adds to this rank."""
    distributed.barrier()  # no rank is still connecting
    distributed.destroy_process_group()
    before = len(os.listdir("/proc/self/fd"))
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(num_ranks)}
    processes.MOST_IN_MESH = most_in_mesh
    processes.join_process_group(torch.device("cpu"), distributed.FileStore(path, num_ranks))
    distributed.all_reduce(torch.ones(3))
    return len(os.listdir("/proc/self/fd")) - before


@pytest.mark.parametrize(("most_in_mesh", "holds"), [(64, lambda count: count >= 12), (4, lambda count: count <= 10)])
def test_many_ranks_connect_to_those_that_they_talk_to(tmp_path: Path, most_in_mesh: int, holds: object) -> None:
    """A full mesh of 330 ranks would take all descriptors that a process has by default."""
    assert callable(holds)
    counts = forked(12, count_connections, 12, most_in_mesh, str(tmp_path / "store"))
    assert all(map(holds, counts)), counts
