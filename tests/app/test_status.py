"""`dtrain status`: what people and monitors read of a run, from its folder alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from declarative_train.app.main import main
from declarative_train.run.event import CheckpointSaved, Notice
from declarative_train.run.storage.run_lock import RunLock
from tests.tools.experiments.folders import ended, make_run, started, step


def told(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["status", str(folder), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_running_run_tells_its_rate_its_checkpoint_and_its_restarts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_run(
        tmp_path / "a",
        started(tmp_path),
        replace(step(4, 0.7), step_s=9.0),
        Notice("of the session before", 101.0, is_warning=True),
        CheckpointSaved(5, "a/step_5", False, 0.1, 105.0),
        replace(started(tmp_path, 5), num_ranks=4),
        Notice("the store is away", 106.0, is_warning=True),
        Notice("not a warning", 106.0),
        replace(step(8, 0.6), step_s=2.0),
        settings={},
    )
    lock = RunLock()
    lock.take(folder)
    found = told(folder, capsys)
    assert main(["status", str(folder)]) == 0
    text = capsys.readouterr().out
    lock.release()
    assert (found["state"], found["step"], found["num_steps"], found["num_ranks"]) == ("running", 8, 20, 4)
    assert (found["step_s"], found["remaining_s"], found["restarts"]) == (2.0, 24.0, 1)
    assert (found["checkpoint_step"], found["steps_since_checkpoint"]) == (5, 3)
    assert found["warnings"] == ["the store is away"]
    assert "step        8 of 20 (40%)" in text
    assert "checkpoint  step 5, " in text
    assert "warning     the store is away" in text


def test_a_run_that_ended_and_one_that_wrote_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    over = told(make_run(tmp_path / "a", started(tmp_path), ended(20, 0.5), settings={}), capsys)
    assert (over["state"], over["remaining_s"], over["checkpoint_step"], over["restarts"]) == (
        "finished",
        None,
        None,
        0,
    )
    empty = told(make_run(tmp_path / "b", settings={}), capsys)
    assert (empty["state"], empty["num_ranks"], empty["step_s"]) == ("failed", None, None)
    assert main(["status", str(tmp_path / "b")]) == 0


def test_another_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(tmp_path)]) == 2
    assert "is not the folder of a run" in capsys.readouterr().err
