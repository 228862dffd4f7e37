"""Ranks that torchrun started: rank 0 compiles for all, mistakes are told once, torchrun's report stands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from declarative_train.logs.event import RunEnded, RunStarted
from declarative_train.logs.sinks.jsonl import read_events
from tests.runtime.made_recipes import DIGITS, merged, write_data, write_recipe

TWO = merged(DIGITS, {"parallelism": "ddp", "layout": {"gpus": 2}})


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_data(tmp_path)
    return tmp_path


def torchrun(directory: Path, recipe: dict[str, Any], *words: str, num_ranks: int = 2) -> tuple[int, str]:
    path = write_recipe(directory, recipe)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)),
            *("-m", "declarative_train", "run", str(path), *words),
        ],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return done.returncode, done.stderr


def test_a_run(directory: Path) -> None:
    code, errors = torchrun(directory, TWO)
    assert code == 0, errors
    (run,) = (directory / "runs" / "made").iterdir()
    events = read_events(run / "events.jsonl")
    assert isinstance(events[0], RunStarted)
    assert events[0].num_ranks == 2
    assert isinstance(events[-1], RunEnded)
    assert events[-1].status == "finished"
    newest = run / "checkpoints" / "step_00000014"
    data = next(newest.glob("*.distcp"))
    data.write_bytes(data.read_bytes()[:-1] + b"?")
    code, errors = torchrun(directory, TWO, "--resume")
    assert code == 0, errors
    assert len(list((directory / "runs" / "made").iterdir())) == 1
    said = f"warning: passed over: the checkpoint {newest} is damaged: the checksum of {data.name} does not match"
    assert errors.count(said) == 1
    assert "going on from" in errors
    resumed = [event for event in read_events(run / "events.jsonl") if isinstance(event, RunStarted)]
    assert [event.first_step for event in resumed] == [0, 7]
    (data, *_) = newest.glob("*.distcp")
    assert data.read_bytes()[-1:] != b"?"


def test_a_mistake_in_the_recipe_is_told_once(directory: Path) -> None:
    code, errors = torchrun(directory, merged(TWO, {"model": {"graph": {"act": {"type": "relo"}}}}))
    assert code != 0
    assert errors.count("`relo`") <= 2  # in the message and in the source line below it
    assert errors.count("error[") == 1
    assert "exitcode  : 1" in errors
    assert not (directory / "runs").exists()


@pytest.mark.long
def test_another_number_of_ranks_is_refused(directory: Path) -> None:
    code, errors = torchrun(directory, TWO, num_ranks=3)
    assert code != 0
    assert errors.count("the plan is for 2 ranks (ddp), torchrun started 3") == 1
    assert "--nproc-per-node 2" in errors
    assert "exitcode  : 3" in errors
    assert not (directory / "runs").exists()


@pytest.mark.long
def test_a_loss_that_is_not_finite_is_told_once(directory: Path) -> None:
    changes = {"training": {"optimizer": {"type": "sgd", "lr": 1e30}}}
    code, errors = torchrun(directory, merged(TWO, changes))
    assert code != 0
    assert errors.count("dtrain: the run failed: step ") == errors.count("the loss is ") == 1
