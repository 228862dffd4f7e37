"""`checkpoint.background`: training goes on while a checkpoint is written; what is written is the same to the bit."""

from __future__ import annotations

import os
import signal
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch

from declarative_train.engine.checkpoints.format import HashingFileSystem
from declarative_train.engine.checkpoints.store import CheckpointStore
from declarative_train.engine.step.step_runner import StepRunner
from declarative_train.planner.text.describe import describe
from declarative_train.run import checkpoint
from declarative_train.run.event import CheckpointSaved, StepDone
from declarative_train.run.launch import run
from tests.engine.made_recipes import DEEP, WAYS, compiled, merged, write_data
from tests.engine.runs import Done, assert_same_tensors, checkpoints, go

WRITES_S = 0.4
FIVE = {"checkpoint": {"every": "5 steps", "keep": 99}, "training": {"ema": {"decay": 0.9}}}
BESIDE = {"checkpoint": {"background": True}}
STOPPED_FOR = {"checkpoint": {"background": False}}
WHO = [
    "single",
    *(
        pytest.param(way, marks=pytest.mark.long)
        for way in ("fsdp 2", "ddp 2", "pipeline 2 x ddp 2", "pipeline 2 x fsdp 2")
    ),
]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_data(tmp_path)
    return tmp_path


@contextmanager
def slow_saves(seconds: float = WRITES_S) -> Iterator[None]:
    """Also of ranks that are forked meanwhile. One that begins before another one has ended is found out."""
    with pytest.MonkeyPatch.context() as patch:
        prepare, publish, busy = CheckpointStore.prepare, CheckpointStore.publish, [False]

        def prepared(self: CheckpointStore, step: int) -> str:
            assert not busy[0]
            busy[0] = True
            return prepare(self, step)

        def slowly(self: CheckpointStore, *given: Any) -> Any:
            time.sleep(seconds)
            busy[0] = False
            return publish(self, *given)

        patch.setattr(CheckpointStore, "prepare", prepared)
        patch.setattr(CheckpointStore, "publish", slowly)
        yield


@pytest.mark.parametrize("way", WHO)
def test_what_is_written_beside_training_is_to_the_bit_what_it_stopped_for(directory: Path, way: str) -> None:
    recipe = merged(merged(DEEP, WAYS[way]), FIVE)
    stopped_for = go(directory, recipe, STOPPED_FOR)
    with slow_saves():
        beside = go(directory, recipe, BESIDE)
    assert (stopped_for.code, beside.code) == (0, 0)
    assert "; written in the background, from a copy of " in describe(compiled(directory, merged(recipe, BESIDE)))
    wanted, found = checkpoints(stopped_for.run_dir), checkpoints(beside.run_dir)
    assert list(found) == list(wanted)
    assert {5, 10, 15, 20, 21} <= found.keys()
    for step, one in wanted.items():
        assert_same_tensors(one.tensors, found[step].tensors)
        assert (one.numbers, one.state, one.is_best) == (found[step].numbers, found[step].state, found[step].is_best)
    assert steps_done_before(beside, 5) > 5
    assert steps_done_before(stopped_for, 5) == 5
    assert all(event.seconds >= WRITES_S for event in beside.of(CheckpointSaved))
    again = go(directory, recipe, BESIDE, resume=str(beside.run_dir / "checkpoints" / "step_00000010"))
    assert_same_tensors(checkpoints(again.run_dir)[21].tensors, wanted[21].tensors)


def steps_done_before(done: Done, saved_step: int) -> int:
    """The last step that is told before the checkpoint of a step is."""
    last = 0
    for event in done.events:
        if isinstance(event, StepDone):
            last = event.step
        if isinstance(event, CheckpointSaved) and event.step == saved_step:
            return last
    raise AssertionError(f"no checkpoint of step {saved_step}")


def test_the_thread_does_not_start_while_tensors_of_training_are_still_to_be_freed(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch frees each without the GIL, so training would wait for the thread as often."""
    copy, submit = checkpoint.copy_to_host, ThreadPoolExecutor.submit
    views: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []

    def copied(tensors: dict[str, torch.Tensor], *given: Any) -> Any:
        views[:] = [weakref.ref(item) for name, item in tensors.items() if name.startswith("model/")]
        return copy(tensors, *given)

    def submitted(self: ThreadPoolExecutor, *given: Any) -> Any:
        alive.append(sum(view() is not None for view in views))
        return submit(self, *given)

    monkeypatch.setattr(checkpoint, "copy_to_host", copied)
    monkeypatch.setattr(ThreadPoolExecutor, "submit", submitted)
    assert go(directory, DEEP, FIVE, BESIDE, max_steps=5).code == 0
    assert views
    assert set(alive) == {0}


@pytest.mark.parametrize("way", [pytest.param("single", marks=pytest.mark.long), "fsdp 2"])
def test_a_save_that_fails_is_told_and_ends_the_run(  # with ranks whose standard error is no file
    directory: Path, way: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the last rank, by what writes the tensors."""
    last = len(compiled(directory, merged(DEEP, WAYS[way])).layout.ranks) - 1
    create = HashingFileSystem.create_stream

    def full(self: Any, path: Any, mode: str) -> Any:
        if "00000010" in str(path) and mode == "wb" and int(os.environ.get("RANK", "0")) == last:
            raise OSError(28, "No space left on device", str(path))
        return create(self, path, mode)

    monkeypatch.setattr(HashingFileSystem, "create_stream", full)
    done = go(directory, DEEP, WAYS[way], FIVE, BESIDE)
    said = capsys.readouterr().err
    assert done.code == 3
    assert "no space left on the device" in said
    assert f"rank {last}" in said or way == "single"
    assert "continue from step 7" in said
    assert list(checkpoints(done.run_dir)) == [5, 7]


@pytest.mark.parametrize("way", ["single", pytest.param("fsdp 2", marks=pytest.mark.long)])
def test_a_run_that_fails_leaves_what_was_being_written(
    directory: Path, way: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = StepRunner.run

    def faulty(self: StepRunner, step: int, *given: Any) -> Any:
        if step == 6 and os.environ.get("RANK", "0") == "0":
            raise ValueError("the dog ate the batch")
        return right(self, step, *given)

    monkeypatch.setattr(StepRunner, "run", faulty)
    with slow_saves():
        done = go(directory, DEEP, WAYS[way], FIVE, BESIDE)
    said = capsys.readouterr().err
    assert done.code == 3
    assert "the dog ate the batch" in said
    assert "continue from step 5" in said


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Sums of more threads differ in the last bit, and a process with a pool of threads must not fork."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
def test_killed_while_one_is_written_the_one_before_is_whole(directory: Path) -> None:
    recipe = merged(merged(DEEP, FIVE), BESIDE)
    plan = compiled(directory, recipe)

    def killed() -> None:
        with slow_saves(0.0):
            publish = CheckpointStore.publish

            def hanging(self: CheckpointStore, step: int, manifest: Any) -> Any:
                if step == 10:
                    (directory / "writes").touch()
                    time.sleep(600)
                return publish(self, step, manifest)

            CheckpointStore.publish = hanging  # type: ignore[method-assign]
            run(plan)

    process = get_context("fork").Process(target=killed)
    process.start()
    deadline = time.monotonic() + 60
    while not (directory / "writes").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    (run_dir,) = (directory / "runs" / "made").iterdir()
    assert (run_dir / "checkpoints" / ".step_00000010.partial").exists()
    assert max(checkpoints(run_dir)) == 7
    again, straight = go(directory, recipe, resume=str(run_dir)), go(directory, merged(DEEP, FIVE), STOPPED_FOR)
    assert (again.code, again.run_dir) == (0, run_dir)
    assert_same_tensors(checkpoints(run_dir)[21].tensors, checkpoints(straight.run_dir)[21].tensors)
