"""A run that was interrupted ends as one that was not: to the bit on the same layout, and under another mode."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from declarative_train.logs.event import CheckpointSaved, EpochDone, Event, Notice, RunEnded, RunStarted, StepDone
from declarative_train.logs.sinks.jsonl import read_events
from declarative_train.runtime.checkpoint_format import entries, load_tensors
from declarative_train.runtime.checkpoint_store import CheckpointStore
from declarative_train.runtime.job import default_sinks
from declarative_train.runtime.launch import run
from tests.runtime.made_recipes import DIGITS, compiled, merged, write_data

MODES: dict[str, dict[str, Any]] = {
    "single": {},
    "dp": {"parallelism": "dp", "layout": {"gpus": 2}},
    "ddp": {"parallelism": "ddp", "layout": {"gpus": 2}},
    "ddp3": {"parallelism": "ddp", "layout": {"gpus": 3}},
    "fsdp": {"parallelism": "fsdp", "layout": {"gpus": 2}},
}
EXACT: dict[str, Any] = {"training": {"precision": "fp64", "optimizer": {"type": "adamw", "lr": 1e-2}}}


@dataclass(frozen=True, slots=True)
class Done:
    code: int
    run_dir: Path
    events: list[Event]

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_data(tmp_path)
    return tmp_path


def go(directory: Path, *changes: Mapping[str, Any], **how: Any) -> Done:
    """Run DIGITS with changes; the newest run folder."""
    recipe = DIGITS
    for change in changes:
        recipe = merged(recipe, change)
    plan = compiled(directory, recipe)
    code = run(plan, sinks=default_sinks(quiet=True), **how)
    runs = sorted((directory / "runs" / "made").iterdir(), key=lambda path: (path / "events.jsonl").stat().st_mtime_ns)
    return Done(code, runs[-1], read_events(runs[-1] / "events.jsonl"))


def final_tensors(run_dir: Path) -> dict[str, torch.Tensor]:
    whole, _ = CheckpointStore(str(run_dir / "checkpoints")).entries()
    found = {name: torch.zeros(size, dtype=dtype) for name, (size, dtype) in entries(whole[0].path).items()}
    load_tensors(whole[0].path, found, alone=True)
    return found


def assert_same(one: Path, other: Path, **tolerance: float) -> None:
    left, right = final_tensors(one), final_tensors(other)
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        if tolerance:
            torch.testing.assert_close(tensor, right[name], **tolerance)
        else:
            assert torch.equal(tensor, right[name]), name


@pytest.mark.parametrize("mode", ["single", "ddp", "fsdp"])
def test_to_the_bit_on_the_same_layout(directory: Path, mode: str) -> None:
    dropout = {"model": {"graph": {"act": {"type": "dropout", "p": 0.3}}}}  # draws go on, too
    adam = {"training": {"optimizer": {"type": "adam", "lr": 1e-2}}}
    straight = go(directory, MODES[mode], dropout, adam)
    assert straight.code == 0
    first = go(directory, MODES[mode], dropout, adam, max_steps=5)
    assert first.code == 0
    assert first.of(RunEnded)[-1].status == "stopped"
    second = go(directory, MODES[mode], dropout, adam, resume=str(first.run_dir), max_steps=4)
    assert second.run_dir == first.run_dir
    third = go(directory, MODES[mode], dropout, adam, resume="auto")
    assert third.run_dir == first.run_dir
    assert third.of(RunEnded)[-1].status == "finished"
    assert_same(straight.run_dir, third.run_dir)
    # every logging window that was not cut by a stop tells the same loss
    wanted = {event.step: event.loss for event in straight.of(StepDone)}
    found = {event.step: event.loss for event in third.of(StepDone)}
    assert sorted(found) == [5, 9, 10, 14]
    assert (found[5], found[14]) == (wanted[5], wanted[14])
    # and an epoch that was cut by one tells its whole mean
    for name in ("training/loss", "training/accuracy"):
        means = [event.values[name] for event in third.of(EpochDone)]
        assert means == pytest.approx([event.values[name] for event in straight.of(EpochDone)], rel=1e-12)


@pytest.mark.parametrize(("before", "after"), [*itertools.permutations(["single", "ddp", "fsdp"], 2), ("ddp", "ddp3")])
def test_another_mode_goes_on_with_the_same_samples(directory: Path, before: str, after: str) -> None:
    straight = go(directory, MODES["single"], EXACT)
    first = go(directory, MODES[before], EXACT, max_steps=8)
    second = go(directory, MODES[after], EXACT, resume=str(first.run_dir))
    assert second.run_dir == first.run_dir
    assert second.code == 0
    assert (second.run_dir / "plan.1.json").exists()  # the layout that it began with
    assert_same(straight.run_dir, second.run_dir, rtol=1e-9, atol=1e-12)
    assert second.of(EpochDone)[-1].values["validation/loss"] == pytest.approx(
        straight.of(EpochDone)[-1].values["validation/loss"], rel=1e-9
    )


def test_dp_goes_on_from_ddp(directory: Path) -> None:
    straight = go(directory, MODES["dp"], EXACT)
    first = go(directory, MODES["ddp"], EXACT, max_steps=8)
    second = go(directory, MODES["dp"], EXACT, resume=str(first.run_dir))
    assert_same(straight.run_dir, second.run_dir, rtol=1e-9, atol=1e-12)


def test_auto_starts_from_the_beginning_when_there_is_nothing(directory: Path) -> None:
    done = go(directory, resume="auto")
    assert done.code == 0
    assert done.of(RunStarted)[0].first_step == 0
    assert any("starting from the beginning" in event.message for event in done.of(Notice))


def test_a_torn_checkpoint_is_skipped_and_said(directory: Path) -> None:
    first = go(directory, max_steps=9)
    (first.run_dir / "checkpoints" / "step_00000009" / "manifest.json").unlink()
    second = go(directory, resume="auto")
    assert second.code == 0
    assert second.of(RunStarted)[-1].first_step == 7
    assert any("step_00000009 is torn" in event.message for event in second.of(Notice))


def test_an_older_checkpoint_begins_another_run(directory: Path) -> None:
    first = go(directory)
    second = go(directory, resume=str(first.run_dir / "checkpoints" / "step_00000007"))
    assert second.code == 0
    assert second.run_dir != first.run_dir
    assert second.of(RunStarted)[0].first_step == 7
    assert_same(first.run_dir, second.run_dir)


def test_a_finished_run_that_is_resumed_has_nothing_to_do(directory: Path) -> None:
    first = go(directory)
    second = go(directory, resume="auto")
    assert second.code == 0
    assert second.run_dir == first.run_dir
    assert second.of(RunEnded)[-1].step == 14


def test_what_cannot_be_resumed_is_one_message(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = go(directory, max_steps=5)
    capsys.readouterr()
    other = compiled(directory, merged(DIGITS, {"training": {"optimizer": {"type": "sgd", "lr": 0.2}}}))
    assert run(other, resume=str(first.run_dir), quiet=True) == 3
    assert "of another run" in capsys.readouterr().err
    assert run(other, resume=str(directory / "nowhere"), quiet=True) == 3
    assert "no checkpoint in" in capsys.readouterr().err
    manifest = first.run_dir / "checkpoints" / "step_00000005" / "manifest.json"
    manifest.unlink()
    assert run(other, resume=str(first.run_dir), quiet=True) == 3
    assert "no whole checkpoint" in capsys.readouterr().err


def test_best_and_early_stop_are_remembered(directory: Path) -> None:
    changes = {
        "training": {"epochs": 6, "early_stop": {"metric": "validation/loss", "mode": "min", "patience": "2 epochs"}},
    }
    straight = go(directory, changes)
    first = go(directory, changes, max_steps=10)
    second = go(directory, changes, resume=str(first.run_dir))
    assert second.of(RunEnded)[-1].values == straight.of(RunEnded)[-1].values
    assert [(event.step, event.is_best) for event in second.of(CheckpointSaved) if event.step != 10] == [
        (event.step, event.is_best) for event in straight.of(CheckpointSaved)
    ]


def test_weights_are_not_read_again(directory: Path) -> None:
    torch.save({"weight": torch.zeros(10, 32), "bias": torch.zeros(10)}, directory / "head.pt")
    changes = {"model": {"weights": {"logits": {"path": str(directory / "head.pt")}}}}
    first = go(directory, changes, max_steps=5)
    assert first.code == 0
    plan = compiled(directory, merged(DIGITS, changes))
    (directory / "head.pt").unlink()
    assert run(plan, resume=str(first.run_dir), quiet=True) == 0
