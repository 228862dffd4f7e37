"""Sweeps as processes: results, a point that fails, what goes on after an interruption, Ctrl-C."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from declarative_train.tools.sweep.search import Point
from declarative_train.tools.sweep.sweep import Aim, Result
from tests import started
from tests.engine.made_recipes import DIGITS, merged, write_data
from tests.started import Started, finish

LR = "training.optimizer.lr"
LONG = {"training": {"epochs": None, "steps": 3000}, "logging": {"every": "1 step"}, "checkpoint": {"best": None}}


def sweep(directory: Path, section: dict[str, Any], *changes: dict[str, Any]) -> None:
    write_data(directory)
    recipe = merged(DIGITS, {"sweep": section})
    for change in changes:
        recipe = merged(recipe, change)
    (directory / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))


def start(directory: Path, *words: str) -> Started:
    return started.start("declarative_train", "sweep", "recipe.yaml", *words, cwd=directory)


def wait_for_both(directory: Path) -> None:
    deadline_s = time.monotonic() + 60
    while len(list(directory.glob("runs/made/sweeps/*/*/events.jsonl"))) < 2 and time.monotonic() < deadline_s:
        time.sleep(0.05)


def results(directory: Path) -> dict[str, Any]:
    (path,) = (directory / "runs" / "made" / "sweeps").glob("*/results.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_a_grid_with_a_point_that_fails(tmp_path: Path) -> None:
    """Two points at once; the other one is not stopped by it."""
    sweep(tmp_path, {"type": "grid", "over": {LR: [0.1, 1e30]}}, {"training": {"epochs": 1}})
    code, out, errors = finish(start(tmp_path, "--jobs", "2"))
    assert code == 3, errors
    found = results(tmp_path)
    assert (found["metric"], found["mode"]) == ("validation/accuracy", "max")
    good, bad = found["points"]
    assert (good["state"], good["values"], bad["state"]) == ("finished", {LR: 0.1}, "failed")
    assert good["value"] > 0.3
    assert "point 1 failed: the run failed:" in out
    assert "again  --set training.optimizer.lr=0.1" in out
    assert Path(tmp_path, good["folder"]).name == "000-lr=0.1"
    assert list(Path(tmp_path, good["folder"]).parent.glob("events.out.tfevents.*"))


@pytest.mark.long
def test_a_sweep_goes_on_and_repeats_nothing_that_ended(tmp_path: Path) -> None:
    sweep(tmp_path, {"type": "grid", "over": {LR: [0.1, 1e30]}}, {"training": {"epochs": 1}})
    finish(start(tmp_path, "--jobs", "2"))
    good = results(tmp_path)["points"][0]
    written = Path(tmp_path, good["folder"], "events.jsonl").read_bytes()
    code, out, errors = finish(start(tmp_path, "--resume", "--json"))
    assert code == 3, errors
    assert "000-lr=0.1: started" not in errors
    assert Path(tmp_path, good["folder"], "events.jsonl").read_bytes() == written
    assert [point["state"] for point in json.loads(out)["points"]] == ["finished", "failed"]


def test_a_mistake_in_a_point_starts_nothing(tmp_path: Path) -> None:
    sweep(tmp_path, {"type": "grid", "over": {LR: [0.1], "model.graph.logits.out_features": [10, 7]}})
    code, _, errors = finish(start(tmp_path))
    assert code == 1
    assert "`logits`" in errors or "10 classes" in errors
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("higher_is_better", "order"), [(True, [2, 0, 4]), (False, [4, 0, 2])])
def test_the_best_point_comes_first_and_those_without_a_value_last(higher_is_better: bool, order: list[int]) -> None:
    values = [0.5, None, 0.9, math.nan, 0.1]
    points = [Result(Point(number, {}), "", "finished", value) for number, value in enumerate(values)]
    found = Aim("validation/accuracy", higher_is_better).sort(points)
    assert [result.point.number for result in found] == [*order, 1, 3]


@pytest.mark.long
def test_ctrl_c_stops_all_points_and_the_sweep_goes_on(tmp_path: Path) -> None:
    sweep(tmp_path, {"type": "grid", "over": {LR: [0.1, 0.2]}}, LONG)
    process = start(tmp_path, "--jobs", "2")
    wait_for_both(tmp_path)
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    code, _, errors = finish(process)
    assert code == 75, errors
    assert [point["state"] for point in results(tmp_path)["points"]] == ["stopped", "stopped"]
    code, _, errors = finish(start(tmp_path, "--resume", "--jobs", "2"))
    assert code == 0, errors
    points = results(tmp_path)["points"]
    assert [(point["state"], point["step"]) for point in points] == [("finished", 3000)] * 2
    for point in points:
        text = Path(tmp_path, point["folder"], "events.jsonl").read_text()
        starts = [json.loads(line)["first_step"] for line in text.splitlines() if '"RunStarted"' in line]
        assert len(starts) == 2
        assert starts[1] > 0


@pytest.mark.long
def test_points_of_a_killed_sweep_stop_and_it_goes_on(tmp_path: Path) -> None:
    sweep(tmp_path, {"type": "grid", "over": {LR: [0.1, 0.2]}}, LONG)
    process = start(tmp_path, "--jobs", "2")
    wait_for_both(tmp_path)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    code, _, errors = finish(start(tmp_path, "--resume", "--jobs", "2"))
    assert code == 0, errors
    points = results(tmp_path)["points"]
    assert [(point["state"], point["step"]) for point in points] == [("finished", 3000)] * 2
    for point in points:
        text = Path(tmp_path, point["folder"], "events.jsonl").read_text()
        assert [json.loads(line)["status"] for line in text.splitlines() if '"RunEnded"' in line] == [
            "stopped",
            "finished",
        ]


@pytest.mark.long
def test_optuna_prunes_by_evaluations_on_the_way(tmp_path: Path) -> None:
    section = {
        "type": "optuna",
        "trials": 8,
        "sampler": "random",
        "pruner": "median",
        "seed": 1,
        "over": {LR: [0.2, 0.1, 1e-12]},
    }
    changes = {
        "training": {"epochs": 300},
        "evaluation": {"every": "5 epochs"},
        "checkpoint": {"every": None, "best": None},
    }
    sweep(tmp_path, section, changes)
    code, _, errors = finish(start(tmp_path, "--jobs", "2"), 300)
    assert code == 0, errors
    points = results(tmp_path)["points"]
    assert len(points) == 8
    assert {point["state"] for point in points} <= {"finished", "pruned"}
    pruned = [point for point in points if point["state"] == "pruned"]
    assert all(point["values"][LR] == 1e-12 and point["step"] < 2100 for point in pruned)
