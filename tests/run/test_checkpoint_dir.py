"""`checkpoint.dir`: checkpoints apart from the folders of their runs, in a folder or at a URL."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fsspec
import pytest

from declarative_train import planner
from declarative_train import recipe as recipe_room
from declarative_train.app.records.record import checkpoints_of
from declarative_train.engine.checkpoints.store import CheckpointStore
from declarative_train.inference.trained import open_trained
from declarative_train.run.event import CheckpointSaved, Notice, StepDone
from declarative_train.run.launch import run
from declarative_train.run.storage.checkpoint_dir import claim
from tests.engine import runs
from tests.engine.made_recipes import DIGITS, compiled, merged, write_data
from tests.engine.runs import Done

OFTEN = {"checkpoint": {"every": "1 step", "keep": 2}, "logging": {"every": "1 step"}}
MEMORY = "memory://kept"


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    write_data(tmp_path)
    yield tmp_path
    fsspec.filesystem("memory").store.clear()


def go(directory: Path, folder: object, *changes: Mapping[str, Any], **how: Any) -> Done:
    where = {} if folder is None else {"checkpoint": {"dir": str(folder)}}
    return runs.go(directory, DIGITS, OFTEN, where, *changes, **how)


def losses(done: Done) -> dict[int, float]:
    return {event.step: event.loss for event in done.of(StepDone)}


def steps_in(root: str) -> list[int]:
    whole, torn = CheckpointStore(root).entries()
    assert not torn
    return [entry.step for entry in whole]


def notices(done: Done) -> list[str]:
    return [event.message for event in done.of(Notice)]


@pytest.mark.parametrize("folder", ["kept", MEMORY])
def test_a_run_goes_on_to_the_bit(directory: Path, folder: str) -> None:
    folder = folder if "://" in folder else str(directory / folder)
    whole = go(directory, None)
    first = go(directory, folder, max_steps=3)
    assert not (first.run_dir / "checkpoints").exists()
    again = go(directory, folder, resume="auto")
    assert again.run_dir == first.run_dir
    assert losses(again) == losses(whole)
    last, _ = checkpoints_of(str(first.run_dir))
    assert last is not None
    root = last.rpartition("/")[0]
    assert root.startswith(f"{folder}/made/{first.run_dir.name}")
    assert again.of(CheckpointSaved)[-1].path == last
    assert steps_in(root) == [max(losses(whole)), max(losses(whole)) - 1]  # keep: 2
    theirs = open_trained(whole.run_dir / "checkpoints" / last.rpartition("/")[2])._source.all()
    assert {name: bool(tensor.equal(theirs[name])) for name, tensor in open_trained(last)._source.all().items()} == (
        dict.fromkeys(theirs, True)
    )


def test_after_a_machine_is_lost_another_goes_on_in_a_folder_of_its_own(directory: Path) -> None:
    """Its run folder is gone, and nobody could tell whether the run still writes: what it saved stays as it is."""
    whole = go(directory, None)
    first = go(directory, MEMORY, max_steps=3)
    old, _ = checkpoints_of(str(first.run_dir))
    shutil.rmtree(directory / "runs")
    again = go(directory, MEMORY, resume="auto")
    assert {step: loss for step, loss in losses(whole).items() if step > 3} == losses(again)
    new, _ = checkpoints_of(str(again.run_dir))
    assert old is not None
    assert new is not None
    assert old.rpartition("/")[0] != new.rpartition("/")[0]
    assert steps_in(old.rpartition("/")[0]) == [3, 2]
    (said,) = [text for text in notices(again) if text.startswith("continuing from")]
    assert said == (
        f"continuing from {old} in a new folder, {again.run_dir}, because the checkpoint is not "
        "in a run's folder on this machine"
    )


def test_runs_that_start_in_the_same_instant_have_a_place_each(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two machines: each has run folders of its own, and the names may be the same."""
    monkeypatch.setattr(time, "strftime", lambda *_: "20261122-101500")
    kept = directory / "kept"
    done = []
    for machine in ("a", "b"):
        plan = compiled(directory, merged(merged(DIGITS, OFTEN), {"checkpoint": {"dir": str(kept)}}))
        run_dir = directory / machine / "20261122-101500-single"
        run_dir.mkdir(parents=True)
        done.append(claim(str(kept), plan.name, run_dir))
    assert len(set(done)) == 2
    first, second = (go(directory, kept, max_steps=steps) for steps in (2, 3))
    assert first.run_dir.name != second.run_dir.name
    assert [steps_in(str(checkpoints_of(str(each.run_dir))[0]).rpartition("/")[0]) for each in (first, second)] == [
        [2, 1],
        [3, 2],
    ]
    remote = {claim(MEMORY, "made", first.run_dir) for _ in range(3)}
    assert len(remote) == 3


def test_a_model_is_found_by_its_run_by_its_place_and_by_a_checkpoint(directory: Path) -> None:
    best = {"checkpoint": {"best": {"metric": "validation/loss", "mode": "max"}}}
    done = go(directory, directory / "kept", {"data": {"split": {"validation": 0.2}}}, best)
    last, kept_best = checkpoints_of(str(done.run_dir))
    assert last is not None
    assert kept_best not in (None, last)
    for path in (done.run_dir, done.run_dir.parent, directory / "kept" / "made", Path(str(kept_best)).parent.parent):
        trained = open_trained(path)
        assert (trained.path, trained.run_dir) == (kept_best, done.run_dir)
    one = open_trained(last)
    assert (one.path, one.run_dir) == (last, done.run_dir)
    shutil.copytree(last, directory / "copied")
    assert open_trained(directory / "copied").run_dir is None


def test_weights_of_a_run_are_taken_from_where_it_keeps_them(directory: Path) -> None:
    """By lint as by the run; what is on another machine is looked at when the run starts."""
    for folder in (directory / "kept", MEMORY):
        done = go(directory, folder)
        start = {"model": {"weights": str(done.run_dir)}, "training": {"optimizer": {"lr": 0.0}}}
        again = runs.go(directory, DIGITS, OFTEN, start, max_steps=1)
        assert again.code == 0
        last, _ = checkpoints_of(str(again.run_dir))
        before, _ = checkpoints_of(str(done.run_dir))
        for name, tensor in open_trained(str(last))._source.all().items():
            assert tensor.equal(open_trained(str(before))._source.whole(name))


def test_a_run_keeps_the_place_that_it_began_with(directory: Path) -> None:
    first = go(directory, directory / "kept", max_steps=2)
    again = go(directory, directory / "other", resume="auto", max_steps=1)
    assert again.run_dir == first.run_dir
    assert not (directory / "other").exists()
    root = f"{directory}/kept/made/{first.run_dir.name}/checkpoints"
    assert f"the checkpoints remain in {root}: `checkpoint.dir` is for new runs" in notices(again)
    assert steps_in(root) == [3, 2]


def test_an_older_checkpoint_begins_another_run_in_a_place_of_its_own(directory: Path) -> None:
    first = go(directory, directory / "kept", max_steps=3)
    root = f"{directory}/kept/made/{first.run_dir.name}/checkpoints"
    again = go(directory, directory / "kept", resume=f"{root}/step_00000002", max_steps=1)
    assert again.run_dir != first.run_dir
    assert steps_in(root) == [3, 2]
    newest = go(directory, directory / "kept", resume=f"{root}/step_00000003", max_steps=1)
    assert newest.run_dir == first.run_dir
    assert steps_in(root) == [4, 3]


def test_a_place_that_cannot_be_made_is_one_message_before_the_run(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory / "file").write_text("")
    plan = compiled(directory, merged(DIGITS, {"checkpoint": {"dir": str(directory / "later" / "kept")}}))
    (directory / "later").write_text("")  # after it was linted
    assert run(plan, quiet=True) == 3
    assert capsys.readouterr().err == (
        f"dtrain: the folder for checkpoints {directory}/later/kept cannot be created: {directory}/later is a "
        "file; help: set `checkpoint.dir` to a writable folder or URL, or remove it\n"
    )
    assert list((directory / "runs" / "made").iterdir()) == []


@pytest.mark.parametrize(
    ("folder", "code", "said"),
    [
        ("{here}/file/kept", "O030", "`{here}/file/kept` cannot be used for checkpoints: {here}/file is not a folder"),
        ("s4://bucket", "O030", "`s4://bucket` cannot be used for checkpoints: unknown file system `s4`"),
        (
            "{here}/runs",
            "O032",
            "checkpoints cannot be kept in `{here}/runs`: the runs of this recipe are in that folder",
        ),
        ("{here}/runs/made/x", "O032", "the runs of this recipe are in that folder"),
        ("{run}/kept", "O032", "checkpoints cannot be kept in `{run}/kept`: {run} is the folder of a run"),
    ],
)
def test_mistakes_are_found_before(directory: Path, folder: str, code: str, said: str) -> None:
    (directory / "file").write_text("")
    run_dir = directory / "elsewhere" / "run"
    run_dir.mkdir(parents=True)
    (run_dir / "run.json").write_text("{}")
    places = {"here": str(directory), "run": str(run_dir)}
    (directory / "made.yaml").write_text(json.dumps(DIGITS))
    set_ = [f"checkpoint.dir={folder.format(**places)}", f"logging.dir={directory}/runs"]
    loaded = recipe_room.load(str(directory / "made.yaml"), set_=set_)
    found = [item for item in loaded.diagnostics if item.code == code]
    assert [said.format(**places) in item.message for item in found] == [True]


def test_the_plan_says_where(directory: Path) -> None:
    plan = compiled(directory, merged(DIGITS, {"checkpoint": {"dir": "s3://bucket/kept"}}))
    assert ", below s3://bucket/kept" in planner.describe(plan)
