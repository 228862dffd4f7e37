"""Counts of messages, requests to storage and open files of a run of many ranks: `python -m tests.scale [--write]`.

They are a table in docs/performance.md. A node of the table has four ranks. All ranks run on this machine, with the
host names of their nodes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.report import write_table
from tests.engine.made_recipes import DEEP, merged, write_data, write_recipe
from tests.run.test_torchrun import meeting_place
from tests.started import finish, start

NUMBERS, PER_NODE = (4, 8, 16, 32), 4
PATIENCE_S = 1200.0
HEADER = (
    "| ranks | store bytes of a rank that reads no plan | store bytes, all ranks | save requests of a rank | "
    "save requests, all ranks | `stat` calls of a save, all ranks | open descriptors, median | open descriptors, "
    "maximum | largest gather, bytes |"
)


@dataclass(frozen=True, slots=True)
class Counted:
    """Counts of each rank in a run, and in a run that resumed it; the manifest of its last checkpoint; and the size of
    its plan."""

    ranks: list[dict[str, Any]]
    resumed: list[dict[str, Any]]
    manifest: dict[str, Any]
    plan_bytes: int


def count(
    directory: Path, num_ranks: int, per_node: int, monkeypatch: pytest.MonkeyPatch, limit_s: float = 280
) -> Counted:
    """Return the counts of a run of `num_ranks` ranks, of which `per_node` have the same host name."""
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
        said = [finish(each, limit_s) for each in ranks]
        assert [code for code, _, _ in said] == [0] * num_ranks, "".join(errors for _, _, errors in said)
        found.append([json.loads((counts / f"{rank}.json").read_text()) for rank in range(num_ranks)])
    (run,) = (folder / "runs" / "made").iterdir()
    manifest = json.loads((run / "checkpoints" / "step_00000013" / "manifest.json").read_text())
    return Counted(found[0], found[1], manifest, os.path.getsize(run / "plan.json"))


def most_of(found: Counted, is_meant: Callable[[dict[str, Any]], bool]) -> dict[str, int]:
    """Return the largest count of each kind among the ranks for which `is_meant` returns true."""
    meant = [each | each["largest"] for each in found.ranks if is_meant(each)]
    return {name: max(each[name] for each in meant) for name in ("received", "gather_object", "broadcast_object_list")}


def describe(num_ranks: int, found: Counted) -> str:
    """Return the row of the table for a number of ranks."""
    alike = most_of(found, lambda rank: rank["received"] < found.plan_bytes / 2)
    saves = [rank["saves"][1] for rank in found.ranks]
    opened = [rank["descriptors"] for rank in found.ranks]
    cells = (
        num_ranks,
        alike["received"],
        sum(rank["received"] for rank in found.ranks),
        statistics.median_low(save["requests"] for save in saves),
        sum(save["requests"] for save in saves),
        sum(save["stats"] for save in saves),
        statistics.median_low(opened),
        max(opened),
        most_of(found, lambda rank: True)["gather_object"],
    )
    return f"| {' | '.join(f'{cell:,}' for cell in cells)} |"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.scale")
    parser.add_argument("--write", action="store_true", help="replace the table in docs/performance.md")
    write = parser.parse_args(arguments).write
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for number in NUMBERS:
            with pytest.MonkeyPatch.context() as patch:
                rows.append(describe(number, count(Path(folder), number, PER_NODE, patch, PATIENCE_S)))
            print(rows[-1], flush=True)
    table = "\n".join([HEADER, f"|{'---|' * HEADER.count(' |')}", *rows])
    if write:
        write_table("tests.scale", table)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
