"""An object store that refuses, or is slow, during a run: training goes on, and a save is tried again."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.registry import known_implementations

from declarative_train.engine.checkpoints import retry
from declarative_train.engine.checkpoints.retry import Retry
from declarative_train.engine.checkpoints.store import CheckpointStore
from declarative_train.engine.failures import CheckpointFailure
from declarative_train.engine.step.step_runner import StepRunner
from declarative_train.run.event import CheckpointSaved, Notice, StepDone
from tests.engine import runs
from tests.engine.made_recipes import DEEP, WAYS, write_data
from tests.engine.runs import Done

REFUSAL = "503: please reduce your request rate"
FIVE = {"checkpoint": {"every": "5 steps", "keep": 99, "best": None}, "logging": {"every": "1 step"}}
WHO = ["single", pytest.param("fsdp 2", marks=pytest.mark.long)]


class Bucket(LocalFileSystem):
    """A folder as a store. While the file `away` exists next to it every request is refused; `slow` delays each by as
    many seconds as it says."""

    protocol = "bucket"
    place = Path()

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:
        return str(LocalFileSystem._strip_protocol(str(path).removeprefix("bucket://")))

    @classmethod
    def ask(cls) -> None:
        with (cls.place / "requests").open("a") as file:
            file.write(f"{os.environ.get('RANK', '0')}\n")
        slow = cls.place / "slow"
        if slow.exists():
            time.sleep(float(slow.read_text()))
        if (cls.place / "away").exists():
            raise OSError(errno.EBUSY, REFUSAL)


def asking(name: str) -> Callable[..., Any]:
    real = getattr(LocalFileSystem, name)

    def ask(self: Bucket, *given: Any, **named: Any) -> Any:
        self.ask()
        return real(self, *given, **named)

    return ask


for name in ("_open", "ls", "info", "rm", "rm_file", "mv", "makedirs", "cat_file", "pipe_file"):
    setattr(Bucket, name, asking(name))


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    write_data(tmp_path)
    fsspec.register_implementation("bucket", Bucket, clobber=True)
    monkeypatch.setitem(known_implementations, "bucket", {"class": f"{__name__}.Bucket"})
    monkeypatch.setattr(Bucket, "place", tmp_path)
    monkeypatch.setattr(retry, "FIRST_PAUSE_S", 0.02)
    return f"bucket://{tmp_path}/kept"


def at_steps(monkeypatch: pytest.MonkeyPatch, actions: dict[int, Callable[[], object]], seconds: float = 0.05) -> None:
    """Do something before these steps, on rank 0. A step takes longer than requests that succeed."""
    run = StepRunner.run

    def acting(self: StepRunner, step: int, *given: Any) -> Any:
        if os.environ.get("RANK", "0") == "0" and step in actions:
            actions[step]()
        time.sleep(seconds)
        return run(self, step, *given)

    monkeypatch.setattr(StepRunner, "run", acting)


def leave(directory: Path) -> Callable[[], None]:
    """Return a function after which every request is refused, once the checkpoint of step 5 is complete."""

    def refuse() -> None:
        while not list((directory / "kept").rglob("step_00000005/manifest.json")):
            time.sleep(0.01)
        time.sleep(0.3)  # old ones are removed
        (directory / "away").touch()

    return refuse


def go(directory: Path, bucket: str, way: str, **checkpoint: object) -> Done:
    return runs.go(directory, DEEP, WAYS[way], FIVE, {"checkpoint": {"dir": bucket, **checkpoint}})


def saved(done: Done) -> list[int]:
    """Return the steps of the events, once they are known to be those of the store."""
    (event, *_) = done.of(CheckpointSaved)
    whole, _ = CheckpointStore(event.path.rpartition("/")[0]).entries()
    steps = [event.step for event in done.of(CheckpointSaved)]
    assert steps == sorted(entry.step for entry in whole)
    return steps


def warnings(done: Done) -> list[str]:
    return [event.message for event in done.of(Notice) if event.is_warning]


@pytest.mark.parametrize("way", WHO)
def test_a_store_that_is_away_for_a_while_stops_nothing(
    tmp_path: Path, bucket: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = tmp_path / "away"
    at_steps(monkeypatch, {9: leave(tmp_path), 19: away.unlink})
    done = go(tmp_path, bucket, way)
    assert done.code == 0
    steps = saved(done)
    assert {5, 10, 21} <= set(steps)
    assert 15 not in steps
    assert [event.step for event in done.of(StepDone)] == list(range(1, 22))
    first, second = warnings(done)[:2]
    assert first == f"the checkpoint of step 10 cannot be written yet and is tried again: [Errno 16] {REFUSAL}"
    assert second == "no checkpoint of step 15: that of step 10 is still being written"


@pytest.mark.parametrize("way", WHO)
def test_a_store_that_is_away_for_good_ends_the_run_with_one_message(
    tmp_path: Path, bucket: str, way: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DTRAIN_STORE_S", "0.3")
    at_steps(monkeypatch, {9: leave(tmp_path)})
    done = go(tmp_path, bucket, way)
    said = capsys.readouterr().err
    assert done.code == 3
    assert "Traceback" not in said
    (line,) = [line for line in said.splitlines() if line.startswith("dtrain: the run failed: ")]
    assert "the checkpoint of step 10 cannot be written to bucket://" in line
    assert REFUSAL in line
    assert "continue from step 5, as soon as bucket://" in said


@pytest.mark.parametrize("way", WHO)
def test_a_run_that_only_warns_goes_on_and_saves_again(
    tmp_path: Path, bucket: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DTRAIN_STORE_S", "0.1")
    away = tmp_path / "away"
    at_steps(monkeypatch, {9: leave(tmp_path), 19: away.unlink}, seconds=0.1)
    done = go(tmp_path, bucket, way, on_failure="warn")
    assert done.code == 0
    assert {5, 21} <= set(saved(done))
    assert not {10, 15} & set(saved(done))
    assert any(
        each.startswith("there is no checkpoint of step 10, and training continues: ") for each in warnings(done)
    )


def test_a_run_that_only_warns_fails_without_its_last_checkpoint(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DTRAIN_STORE_S", "0.1")
    at_steps(monkeypatch, {19: (tmp_path / "away").touch})
    assert go(tmp_path, bucket, "single", on_failure="warn").code == 3
    assert "the checkpoint of step 21 cannot be written to bucket://" in capsys.readouterr().err


@pytest.mark.parametrize("background", [True, False])
def test_a_full_disk_is_a_warning_where_the_recipe_says_so(
    tmp_path: Path, background: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_data(tmp_path)
    publish = CheckpointStore.publish

    def full(self: CheckpointStore, step: int, manifest: Any) -> Any:
        if step == 10:
            raise OSError(errno.ENOSPC, "No space left on device", "x")
        return publish(self, step, manifest)

    monkeypatch.setattr(CheckpointStore, "publish", full)
    section = {"checkpoint": {"on_failure": "warn", "background": background}}
    done = runs.go(tmp_path, DEEP, FIVE, section)
    assert done.code == 0
    folders = sorted(path.name for path in (done.run_dir / "checkpoints").iterdir())
    assert folders == [f"step_{step:08d}" for step in (5, 15, 20, 21)]  # nothing is left of step 10
    (said,) = [each for each in warnings(done) if "step 10" in each]
    assert said.startswith("there is no checkpoint of step 10, and training continues: no space left on the device")


def requests_of_a_save(directory: Path, bucket: str, num_ranks: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how often each rank asks the store during the third save, which also removes an old one."""
    log, marks = directory / "requests", []

    def mark() -> None:
        (directory / f"requests_{len(list(directory.glob('requests_*')))}").write_text(log.read_text())

    with monkeypatch.context() as patch:
        at_steps(patch, {15: mark, 20: mark}, seconds=0.3)
        sharded = {"parallelism": "fsdp", "layout": {"gpus": num_ranks}, "training": {"steps": 21, "epochs": None}}
        section = {"checkpoint": {"dir": bucket, "keep": 1, "background": False, "every": "5 steps"}}
        assert runs.go(directory, DEEP, sharded, FIVE, section).code == 0
    for path in sorted(directory.glob("requests_*")):
        marks.append(path.read_text().split())
        path.unlink()
    log.unlink()
    before, after = marks
    return [after.count(str(rank)) - before.count(str(rank)) for rank in range(num_ranks)]


@pytest.mark.long
def test_a_save_costs_no_rank_more_requests_where_there_are_more_ranks(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the removal of an old checkpoint, which has a file of each rank."""
    two, four, eight = (requests_of_a_save(tmp_path, bucket, number, monkeypatch) for number in (2, 4, 8))
    assert set(two[1:]) == set(four[1:]) == set(eight[1:])
    assert two[0] == four[0] == eight[0]


def test_a_slow_store_delays_no_step(tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    at_steps(monkeypatch, {9: lambda: (tmp_path / "slow").write_text("0.1"), 13: (tmp_path / "slow").unlink})
    done = go(tmp_path, bucket, "single")
    (event,) = [event for event in done.of(CheckpointSaved) if event.step == 10]
    assert event.seconds > 0.1
    assert done.code == 0
    assert {5, 10, 15, 20, 21} <= set(saved(done))


def test_a_store_that_does_not_answer_delays_no_step(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that hangs is neither refused nor over when the next checkpoint is due."""
    monkeypatch.setattr(retry, "LATE_S", 0.1)
    (hangs := tmp_path / "slow").write_text("0")
    at_steps(monkeypatch, {9: lambda: hangs.write_text("3"), 19: lambda: hangs.write_text("0")})
    done = go(tmp_path, bucket, "single")
    assert done.code == 0
    assert 15 not in saved(done)
    assert warnings(done)[0] == "no checkpoint of step 15: that of step 10 is still being written"


def test_checkpoints_that_are_left_out_are_two_warnings(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "LATE_S", 0.1)
    (hangs := tmp_path / "slow").write_text("0")
    at_steps(monkeypatch, {9: lambda: hangs.write_text("3"), 19: lambda: hangs.write_text("0")})
    done = go(tmp_path, bucket, "single", every="1 steps")
    missing = sorted({*range(1, 22)} - {*saved(done)})
    reported = warnings(done)
    firsts = [
        text
        for text in reported
        if re.fullmatch(r"no checkpoint of step \d+: that of step \d+ is still being written", text)
    ]
    totals = [
        re.fullmatch(r"(\d+) checkpoints were not saved while that of step \d+ was being written", text)
        for text in reported
    ]
    numbers = [int(found[1]) for found in totals if found]
    assert max(numbers) >= 2
    assert len(firsts) + len(numbers) == len(reported)
    assert sum(numbers) + len(firsts) - len(numbers) == len(missing)


@pytest.mark.parametrize("error", [FileNotFoundError("bucket"), PermissionError(13, "denied"), CheckpointFailure("no")])
def test_what_does_not_pass_is_not_tried_again(error: Exception) -> None:
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        raise error

    with pytest.raises(type(error)):
        Retry(60)(fail)
    assert len(calls) == 1


def test_all_operations_of_a_save_share_one_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    again = Retry(100)
    answers = iter([ValueError("away"), ValueError("away"), 1])

    def answer() -> Any:
        found = next(answers)
        if isinstance(found, Exception):
            raise found
        return found

    assert again(answer) == 1
    assert again.reason is None
    clock[0] = 101.0

    def fail() -> None:
        clock[0] += 1
        raise ValueError("away for good")

    with pytest.raises(ValueError, match="away for good"):
        again(fail)
    assert again.reason is None or clock[0] < 210
