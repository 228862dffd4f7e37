"""A run that was interrupted ends as one that was not: to the bit on the same layout, and under another mode."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from declarative_train.engine.checkpoints.store import CheckpointEntry, CheckpointStore
from declarative_train.plan.checkpoint_files import seal
from declarative_train.plan.plan import PLAN_VERSION
from declarative_train.run.event import CheckpointSaved, EpochDone, Event, Notice, RunEnded, RunStarted, StepDone
from declarative_train.run.launch import run
from declarative_train.run.processes import resume_hint, say
from declarative_train.run.rank_job import RankJob, default_sinks
from declarative_train.run.sinks.jsonl import JsonlSink
from declarative_train.run.storage.run_dir import RunPlace
from tests.engine import runs
from tests.engine.launched import finish, saved, start, wait_for_steps
from tests.engine.made_recipes import DEEP, DIGITS, WAYS, compiled, merged, write_data
from tests.engine.runs import Done, assert_same_tensors, checkpoints, last_tensors

SLOW = pytest.mark.timeout(300)  # several runs of two processes: half a minute alone, minutes on a loaded machine


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_data(tmp_path)
    return tmp_path


def go(directory: Path, *changes: Mapping[str, Any], **how: Any) -> Done:
    return runs.go(directory, DIGITS, *changes, **how)


def everything(run: Done) -> dict[int, tuple[object, ...]]:
    """What a logging step tells that is no matter of time."""
    return {event.step: (event.loss, event.metrics, event.lr, event.grad_norm) for event in run.of(StepDone)}


@pytest.mark.parametrize(
    "way",
    [pytest.param(way, marks=SLOW if way == "fsdp 2" else pytest.mark.long) for way in WAYS],
)
def test_to_the_bit_on_the_same_layout(directory: Path, way: str) -> None:
    """Stopped inside an epoch and at its end: all that is told or saved later is what an uninterrupted run has."""
    changes = (
        WAYS[way],
        {
            "model": {"graph": {"drop": {"type": "dropout", "p": 0.3}, "out": {"type": "linear", "out_features": 10}}},
            "objective": {"loss": {"type": "cross_entropy", "input": "out", "target": "y"}},
            "training": {"epochs": 2},
            "checkpoint": {"every": "2 steps", "keep": 100},
        },
    )
    straight = runs.go(directory, DEEP, *changes)
    assert straight.code == 0
    first = runs.go(directory, DEEP, *changes, max_steps=5)
    assert first.code == 0
    assert first.of(RunEnded)[-1].status == "stopped"
    second = runs.go(directory, DEEP, *changes, resume=str(first.run_dir), max_steps=2)
    assert second.run_dir == first.run_dir
    third = runs.go(directory, DEEP, *changes, resume="auto")
    assert third.run_dir == first.run_dir
    assert third.of(RunEnded)[-1].status == "finished"
    assert everything(third) == everything(straight)
    assert [(event.epoch, event.values) for event in third.of(EpochDone)] == [
        (event.epoch, event.values) for event in straight.of(EpochDone)
    ]
    assert third.of(RunEnded)[-1].values == straight.of(RunEnded)[-1].values
    wanted, found = checkpoints(straight.run_dir), checkpoints(third.run_dir)
    assert list(wanted) == [2, 4, 6, 7, 8, 10, 12, 14]
    assert found.keys() == wanted.keys() | {5}  # where it was stopped
    for step, whole in wanted.items():
        assert_same_tensors(found[step].tensors, whole.tensors)
        assert found[step].numbers == whole.numbers, step
        assert (found[step].state, found[step].is_best) == (whole.state, whole.is_best), step


TIED = {
    "model": {
        "graph": {
            "back": {"type": "linear", "out_features": 16, "input": "layers"},
            "again": {"type": "reuse", "node": "layers.1", "input": "back"},
            "logits": {"input": "again"},
        },
        "parameters": {"back.weight": {"tie": "layers.0.up.weight"}},
    }
}


@SLOW
@pytest.mark.long
@pytest.mark.parametrize("way", ["pipeline 2", "pipeline 2 x fsdp 2"])
def test_copies_of_stages_to_the_bit_and_on_one_process(directory: Path, way: str) -> None:
    """A tie and a call across stages: both ranks hold a copy, a checkpoint holds it once."""
    changes = (TIED, WAYS[way])
    straight = runs.go(directory, DEEP, *changes)
    first = runs.go(directory, DEEP, *changes, max_steps=5)
    third = runs.go(directory, DEEP, *changes, resume=str(first.run_dir))
    assert (straight.code, first.code, third.code) == (0, 0, 0)
    assert everything(third) == {step: said for step, said in everything(straight).items() if step in everything(third)}
    wanted, found = checkpoints(straight.run_dir), checkpoints(third.run_dir)
    assert "model/layers.0.up.weight" in wanted[21].tensors
    assert "model/back.weight" not in wanted[21].tensors
    assert_same_tensors(found[21].tensors, wanted[21].tensors)
    alone = runs.go(directory, DEEP, TIED)
    assert alone.of(RunEnded)[-1].values == pytest.approx(straight.of(RunEnded)[-1].values, rel=1e-3)


DRAWN = {
    "model": {
        "graph": {"chosen": "rand_like(x[:, 0]) < 0.4", "hidden": {"input": "noisy"}, "noisy": "x + randn_like(x)"}
    },
    "objective": {"loss": {"mask": "chosen"}},
    "training": {"precision": "fp64"},
}


@SLOW
@pytest.mark.parametrize("way", [pytest.param("pipeline 2", marks=pytest.mark.long), "ddp 2, accumulation 3"])
def test_what_is_drawn_from_fields_goes_on_to_the_bit_and_is_that_of_one_process(directory: Path, way: str) -> None:
    """A mask that decides how many items count, and noise; the evaluations draw, too."""
    changes = (DRAWN, WAYS[way])
    straight = runs.go(directory, DEEP, *changes)
    first = runs.go(directory, DEEP, *changes, max_steps=10)
    third = runs.go(directory, DEEP, *changes, resume=str(first.run_dir))
    assert (straight.code, first.code, third.code) == (0, 0, 0)
    assert everything(third) == {step: said for step, said in everything(straight).items() if step in everything(third)}
    assert third.of(RunEnded)[-1].values == straight.of(RunEnded)[-1].values
    alone = runs.go(directory, DEEP, DRAWN)
    assert alone.of(RunEnded)[-1].values == pytest.approx(straight.of(RunEnded)[-1].values, rel=1e-9)
    assert [event.loss for event in alone.of(StepDone)] == pytest.approx(
        [event.loss for event in straight.of(StepDone)], rel=1e-10
    )


@pytest.mark.parametrize(
    "way",
    [
        "pipeline 2",
        pytest.param("ddp 3", marks=pytest.mark.long),
        pytest.param("pipeline 2 x ddp 2", marks=pytest.mark.long),
    ],
)
def test_to_the_bit_after_a_signal(directory: Path, way: str) -> None:
    """SIGTERM ends a step nobody chose; the checkpoints after it are those of a run that nobody stopped."""
    # ranks agree to stop about once a second: the run has to last longer
    changes = (
        WAYS[way],
        {
            "training": {"epochs": None, "steps": 48},
            "evaluation": {"every": "24 steps"},
            "checkpoint": {"every": "12 steps", "keep": 100},
        },
    )
    recipe = DEEP
    for change in changes:
        recipe = merged(recipe, change)
    straight = runs.go(directory, recipe)
    straight.run_dir.parent.rename(directory / "straight")
    process = start(saved(directory, recipe), "slow")
    wait_for_steps(directory, 5)
    process.send_signal(signal.SIGTERM)
    code, errors = finish(process)
    assert code == 75, errors
    first, events = runs.newest(directory)
    stopped = next(event.step for event in events if isinstance(event, RunEnded))
    assert 5 <= stopped < 48
    second = runs.go(directory, recipe, resume=str(first))
    assert (second.code, second.run_dir) == (0, first)
    assert everything(second) == everything(straight)
    wanted, found = checkpoints(directory / "straight" / straight.run_dir.name), checkpoints(first)
    assert sorted({*wanted, stopped}) == list(found)
    for step, whole in wanted.items():
        assert_same_tensors(found[step].tensors, whole.tensors)
        assert (found[step].numbers, found[step].state) == (whole.numbers, whole.state), step


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
    assert any("step_00000009 is incomplete" in event.message for event in second.of(Notice) if event.is_warning)


def test_a_damaged_checkpoint_is_passed_over(directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A byte of the newest one (of which file is all the same: `test_checkpoint`): two ranks go on from the one before,
    to the bit, and it is said even where little is."""
    changes = (WAYS["ddp 2"], {"checkpoint": {"every": "1 step", "keep": 100}})
    straight = go(directory, *changes)
    first = go(directory, *changes, max_steps=9)
    newest = first.run_dir / "checkpoints" / "step_00000009"
    flip(newest / "__0_0.distcp")
    capfd.readouterr()
    second = go(directory, *changes, resume="auto")
    assert (second.code, second.run_dir) == (0, first.run_dir)
    assert second.of(RunStarted)[-1].first_step == 8
    said = f"warning: skipped: the checkpoint {newest} is damaged: the checksum of __0_0.distcp does not match\n"
    assert capfd.readouterr().err.endswith(said)
    assert [event.message for event in second.of(Notice) if event.is_warning] == [said[9:-1]]
    wanted, found = checkpoints(straight.run_dir), checkpoints(first.run_dir)
    assert list(found) == list(wanted)
    for step, whole in wanted.items():
        assert_same_tensors(found[step].tensors, whole.tensors)
        assert (found[step].numbers, found[step].state) == (whole.numbers, whole.state), step


def test_what_was_logged_outlives_a_kill_that_the_checkpoint_outlives(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who goes on from a checkpoint does not tell again what came before: it is on the disk when that exists."""
    right, seen = CheckpointStore.publish, []

    def noted(self: CheckpointStore, step: int, manifest: dict[str, Any]) -> CheckpointEntry:
        run_dir, events = runs.newest(directory)
        curve = EventAccumulator(str(run_dir)).Reload().Scalars("training/loss")
        told = [event.step for event in events if isinstance(event, StepDone)]
        seen.append((step, told, [point.step for point in curve]))
        return right(self, step, manifest)

    monkeypatch.setattr(CheckpointStore, "publish", noted)
    assert go(directory, {"logging": {"every": "1 step"}, "checkpoint": {"every": "2 steps"}}).code == 0
    assert [step for step, _, _ in seen] == [2, 4, 6, 7, 8, 10, 12, 14]
    for step, *both in seen:
        assert [steps[:step] for steps in both] == [list(range(1, step + 1))] * 2


def test_where_all_are_damaged_each_is_named(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = go(directory, {"checkpoint": {"every": "1 step", "keep": 3}}, max_steps=3)
    root = first.run_dir / "checkpoints"
    plan = compiled(directory, DIGITS)
    flip(root / "step_00000003" / ".metadata")
    assert run(plan, resume=str(root / "step_00000003"), quiet=True) == 3
    assert capsys.readouterr().err == (
        f"dtrain: the checkpoint {root}/step_00000003 is damaged: the checksum of .metadata does not match; help: "
        f"{root}/step_00000002 and {root}/step_00000001 are undamaged\n"
    )
    flip(root / "step_00000001" / "manifest.json")
    (root / "step_00000002" / "__0_0.distcp").unlink()
    for resume, place in ((str(first.run_dir), first.run_dir), ("auto", first.run_dir.parent)):
        assert run(plan, resume=resume, quiet=True) == 3
        assert capsys.readouterr().err == (
            f"dtrain: no complete checkpoint in {place}: "
            f"the checkpoint {root}/step_00000001 is damaged: the checksum of manifest.json does not match; "
            f"the checkpoint {root}/step_00000002 is damaged: __0_0.distcp is missing; "
            f"the checkpoint {root}/step_00000003 is damaged: the checksum of .metadata does not match; "
            "help: without --resume a new run starts from the beginning\n"
        )
    assert list((directory / "runs" / "made").iterdir()) == [first.run_dir]
    assert sorted(path.name for path in root.iterdir()) == [f"step_0000000{step}" for step in (1, 2, 3)]


def test_no_hint_names_a_damaged_checkpoint(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = go(directory, {"checkpoint": {"every": "1 step", "keep": 3}}, max_steps=3)
    flip(first.run_dir / "checkpoints" / "step_00000003" / "__0_0.distcp")
    say(
        resume_hint(
            RankJob(compiled(directory, DIGITS), "cpu", RunPlace(first.run_dir, None), None, default_sinks(quiet=True))
        )
    )
    assert "continue from step 2: the same command" in capsys.readouterr().err


def test_the_best_weights_are_damaged_by_the_end(directory: Path) -> None:
    """The run ends all the same, on every rank, and says what its last figures are of."""

    class Flips(JsonlSink):
        def write(self, event: Event) -> None:
            super().write(event)
            if isinstance(event, CheckpointSaved) and event.is_best:
                for path in Path(event.path).glob("*.distcp"):
                    flip(path)

    changes = {"data": {"split": {"test": 0.2}}, "checkpoint": {"best": {"metric": "validation/loss", "mode": "max"}}}
    plan = compiled(directory, merged(merged(DIGITS, WAYS["ddp 2"]), changes))
    assert run(plan, sinks=lambda run_dir: (Flips(run_dir / "events.jsonl"),)) == 0
    run_dir, events = runs.newest(directory)
    (warning,) = [event.message for event in events if isinstance(event, Notice) and event.is_warning]
    assert warning == (
        f"test: evaluated with the last weights, because the best ones cannot be read: the checkpoint "
        f"{run_dir}/checkpoints/step_00000005 is damaged: the checksum of __0_0.distcp does not match"
    )
    (ended,) = [event for event in events if isinstance(event, RunEnded)]
    assert (ended.status, ended.value_steps["test/loss"]) == ("finished", ended.step)


def test_the_best_weights_are_those_of_every_part_of_a_sharded_model(directory: Path) -> None:
    """Nothing that an evaluation before it gathered is computed with."""
    best = {"metric": "validation/loss", "mode": "max"}  # so that the end is not the best
    changes = {"data": {"split": {"validation": 0.2, "test": 0.2}}, "checkpoint": {"best": best}}
    tested = []
    for way in ("single", "fsdp 2"):
        assert (
            run(compiled(directory, merged(merged(DIGITS, WAYS[way]), changes)), sinks=default_sinks(quiet=True)) == 0
        )
        (ended,) = [event for event in runs.newest(directory)[1] if isinstance(event, RunEnded)]
        assert ended.value_steps["test/loss"] < ended.step
        tested.append(ended.values["test/loss"])
    assert tested[1] == pytest.approx(tested[0], rel=1e-5)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def test_an_older_checkpoint_begins_another_run(directory: Path) -> None:
    first = go(directory)
    second = go(directory, resume=str(first.run_dir / "checkpoints" / "step_00000007"))
    assert second.code == 0
    assert second.run_dir != first.run_dir
    assert second.of(RunStarted)[0].first_step == 7
    (note,) = [event.message for event in second.of(Notice)]
    assert note == (
        f"continuing from {first.run_dir}/checkpoints/step_00000007 in a new folder, "
        f"{second.run_dir}, because the checkpoint's run has continued to step 14"
    )
    assert_same_tensors(last_tensors(first.run_dir), last_tensors(second.run_dir))


def test_a_finished_run_that_is_resumed_has_nothing_to_do(directory: Path) -> None:
    first = go(directory)
    second = go(directory, resume="auto")
    assert second.code == 0
    assert second.run_dir == first.run_dir
    assert second.of(RunEnded)[-1].step == 14


def test_what_cannot_be_resumed_is_one_message(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = go(directory, max_steps=5)
    capsys.readouterr()
    changes = {"seed": 1, "training": {"epochs": 3, "optimizer": {"type": "sgd", "lr": 0.2}}}
    other = compiled(directory, merged(DIGITS, changes))
    for resume in (str(first.run_dir), "auto", str(first.run_dir / "checkpoints" / "step_00000005")):
        assert run(other, resume=resume, quiet=True) == 3
        assert capsys.readouterr().err == (
            f"dtrain: the checkpoint {first.run_dir}/checkpoints/step_00000005 belongs to another run: `seed` was 0 "
            "and is 1 (the order of the samples and all random numbers depend on it); help: run the recipe as "
            "it was, or start a new run from its weights with `model.weights`\n"
        )
    assert run(other, resume=str(directory / "nowhere"), quiet=True) == 3
    assert "no checkpoint in" in capsys.readouterr().err
    manifest = first.run_dir / "checkpoints" / "step_00000005" / "manifest.json"
    manifest.unlink()
    assert run(other, resume=str(first.run_dir), quiet=True) == 3
    assert "no complete checkpoint" in capsys.readouterr().err
    assert list((directory / "runs" / "made").iterdir()) == [first.run_dir], "a refusal leaves no folder behind"


@pytest.mark.parametrize(
    ("kept", "why"),
    [
        (None, "its plan no longer exists, so it is not known which"),
        ('{"version": 1}', "it is not known which: plan.json was written by another version of dtrain: it has plan "
         f"version 1, this dtrain reads version {PLAN_VERSION}"),
    ],
)  # fmt: skip
def test_without_the_plan_of_a_checkpoint_nothing_may_change(
    directory: Path, capsys: pytest.CaptureFixture[str], kept: str | None, why: str
) -> None:
    first = go(directory, max_steps=5)
    path = first.run_dir / "checkpoints" / "step_00000005" / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["files"]["plan.json"], manifest["sha256"]
    path.write_bytes(seal(manifest))
    (path.parent / "plan.json").unlink()
    if kept is not None:
        (path.parent / "plan.json").write_text(kept)
    capsys.readouterr()
    assert run(compiled(directory, merged(DIGITS, {"seed": 1})), resume="auto", quiet=True) == 3
    told = capsys.readouterr().err
    assert f"to another run: its model, data, objective, batch or training was different ({why}); help" in told
    assert run(compiled(directory, DIGITS), resume="auto", quiet=True) == 0


@SLOW
@pytest.mark.parametrize("way", ["single", pytest.param("ddp 2", marks=pytest.mark.long)])
def test_a_finished_run_can_be_made_longer(directory: Path, way: str) -> None:
    """With a learning rate that does not depend on the length, to what a longer run would have been."""
    every = {"checkpoint": {"every": "1 step", "keep": 100, "best": None}, "evaluation": {"every": "1 epoch"}}
    base = merged(merged(DEEP, every), WAYS[way] | {"training": {"lr_schedule": None}})
    straight = runs.go(directory, base, {"training": {"epochs": None, "steps": 16}})
    straight.run_dir.parent.rename(directory / "straight")
    short = runs.go(directory, base, {"training": {"epochs": None, "steps": 12}})
    assert short.of(RunEnded)[-1].status == "finished"
    longer = runs.go(directory, base, {"training": {"epochs": None, "steps": 16}}, resume="auto")
    assert (longer.code, longer.run_dir) == (0, short.run_dir)
    assert longer.of(RunEnded)[-1].status == "finished"
    said = [event.message for event in longer.of(Notice) if "since the checkpoint" in event.message]
    assert said == ["since the checkpoint of step 12, `training.steps` was 12 and is 16"]
    assert not [event for event in longer.of(Notice) if event.is_warning]
    assert everything(longer) == everything(straight)
    found = checkpoints(longer.run_dir)
    assert list(found) == list(range(1, 17))
    assert_same_tensors(found[16].tensors, last_tensors(directory / "straight" / straight.run_dir.name))
    again = runs.go(directory, base, {"training": {"epochs": None, "steps": 18}}, resume="auto", max_steps=1)
    assert (again.code, again.of(StepDone)[-1].step) == (0, 17)


def test_a_longer_run_says_what_becomes_of_its_lr(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cosine = {"lr_schedule": {"type": "cosine", "warmup": "10%"}, "epochs": None}
    short = runs.go(directory, DEEP, {"training": cosine | {"steps": 40}})
    longer = runs.go(directory, DEEP, {"training": cosine | {"steps": 80}}, resume="auto")
    assert (longer.code, longer.run_dir) == (0, short.run_dir)
    (lr,) = [event.message for event in longer.of(Notice) if event.is_warning and "lr schedule" in event.message]
    assert lr == (
        "since the checkpoint of step 40, the lr schedule (cosine) changes from here on: at step 41 it gives "
        f"{longer.of(StepDone)[40].lr['lr'] / 1e-2:.4g} x lr instead of {short.of(StepDone)[39].lr['lr'] / 1e-2:.4g} "
        "x lr after its end; its warm-up is 8 steps instead of 4"
    )
    capsys.readouterr()
    shorter = compiled(directory, merged(DEEP, {"training": cosine | {"steps": 30}}))
    assert run(shorter, resume="auto", quiet=True) == 3
    assert "the run should last 30 steps, but has reached step 80" in capsys.readouterr().err


def test_what_may_change_changes_and_is_said(directory: Path) -> None:
    first = go(directory, {"objective": {"metrics": ["perplexity"]}, "checkpoint": {"best": None}}, max_steps=6)
    changes = {
        "training": {"optimizer": {"type": "sgd", "lr": 0.2}, "clip_grad_norm": 1.0},
        "evaluation": {"every": "2 steps"},
    }
    second = go(directory, changes, resume="auto")
    assert (second.code, second.run_dir) == (0, first.run_dir)
    begin = "since the checkpoint of step 6, "
    assert [event.message for event in second.of(Notice) if event.is_warning] == [
        f"{begin}`training.optimizer.lr` was 0.1 and is 0.2",
        f"{begin}`training.clip_grad_norm` was not set and is 1",
    ]
    free = [event.message for event in second.of(Notice) if event.message.startswith(begin) and not event.is_warning]
    assert free == [f"{begin}`objective.metrics.accuracy` is new", f"{begin}`objective.metrics.perplexity` is gone"]
    last = second.of(StepDone)[-1]
    assert (last.lr["lr"], list(last.metrics)) == (0.2, ["accuracy"])
    assert [list(event.values) for event in second.of(EpochDone)][-1] == [
        "training/loss",
        "training/accuracy",
        "validation/loss",
        "validation/accuracy",
    ]


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


def test_another_aim_forgets_the_best(directory: Path) -> None:
    """A loss of 0.9 says nothing about an accuracy."""
    by_loss = {"checkpoint": {"best": {"metric": "validation/loss", "mode": "min"}}}
    first = go(directory, by_loss, max_steps=9)
    assert first.of(CheckpointSaved)[0].is_best
    second = go(directory, resume="auto")
    said = "checkpoint.best was min validation/loss and is max validation/accuracy: the earlier best value is discarded"
    assert [event.message for event in second.of(Notice)].count(said) == 1
    ended = second.of(RunEnded)[-1]
    assert ended.values["best/validation/accuracy"] == ended.values["validation/accuracy"]
    assert [event.step for event in second.of(CheckpointSaved) if event.is_best] == [7, 14]
    again = go(directory, resume="auto")
    assert [event.message for event in again.of(Notice)].count(said) == 1


def test_weights_are_not_read_again(directory: Path) -> None:
    torch.save({"weight": torch.zeros(10, 32), "bias": torch.zeros(10)}, directory / "head.pt")
    changes = {"model": {"weights": {"logits": {"path": str(directory / "head.pt")}}}}
    first = go(directory, changes, max_steps=5)
    assert first.code == 0
    plan = compiled(directory, merged(DIGITS, changes))
    (directory / "head.pt").unlink()
    assert run(plan, resume=str(first.run_dir), quiet=True) == 0
