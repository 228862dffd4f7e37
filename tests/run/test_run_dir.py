"""One process writes to a run's folder, each run has its own, and what a crash has left there goes."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from declarative_train.engine.failures import RunFailure
from declarative_train.plan.checkpoint_files import sort_newest_first
from declarative_train.run.event import Notice, RunEnded, StepDone
from declarative_train.run.launch import run
from declarative_train.run.storage.run_dir import new_run_dir
from declarative_train.run.storage.run_lock import RunLock
from tests.engine import runs
from tests.engine.launched import finish, saved, start, wait_for_steps
from tests.engine.made_recipes import DIGITS, WAYS, compiled, merged, write_data
from tests.engine.plans import make_plan
from tests.started import session

LONG = {
    "training": {"epochs": None, "steps": 4000},
    "checkpoint": {"every": "20 steps"},
    "logging": {"every": "1 step"},
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_data(tmp_path)
    return tmp_path


def test_runs_that_start_in_the_same_instant_have_a_folder_each(tmp_path: Path) -> None:
    plan, barrier, found = make_plan(directory=tmp_path), threading.Barrier(8), []

    def begin() -> None:
        barrier.wait()
        found.append(new_run_dir(plan))

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == len(list((tmp_path / "made").iterdir())) == 8


def test_a_run_is_the_newest_also_where_the_clock_is_behind(tmp_path: Path) -> None:
    """That of another machine, which began the run before."""
    plan = make_plan(directory=tmp_path)
    for name in ("29991231-235959-ddp", "not-a-run"):
        (tmp_path / "made" / name).mkdir(parents=True)
    found = new_run_dir(plan)
    assert found.name.startswith("30000101-000000-")
    assert sort_newest_first(str(path) for path in found.parent.iterdir() if path.name != "not-a-run")[0] == str(found)


def test_one_process_holds_a_run(tmp_path: Path) -> None:
    first, second = RunLock(), RunLock()
    assert first.take(tmp_path) is None
    with pytest.raises(RunFailure, match=f"the run in {tmp_path} is still running: process {os.getpid()} on this mach"):
        second.take(tmp_path)
    assert not second.is_held
    first.release()
    assert not list(tmp_path.iterdir())
    assert second.take(tmp_path) is None
    second.release()
    second.release()


HOLDS = """
import os, signal, sys, time
from pathlib import Path
from declarative_train.run.storage.run_lock import RunLock
RunLock().take(Path(sys.argv[1]))
if os.fork() == 0:
    os.close(1)
    time.sleep(float(sys.argv[2]))
    os._exit(0)
print("held", flush=True)
time.sleep(60)
"""


def holder(folder: Path, seconds: float) -> subprocess.Popen[str]:
    """A process that holds a run, and a rank of it that lives on for so long."""
    command = [sys.executable, "-c", HOLDS, str(folder), str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_run_is_held_until_its_last_rank_is_gone(tmp_path: Path) -> None:
    process = holder(tmp_path, 1.0)
    begun_s = time.monotonic()
    process.kill()
    process.communicate()
    lock = RunLock()
    assert lock.take(tmp_path) is None
    assert time.monotonic() - begun_s > 0.3
    lock.release()


def test_ranks_that_outlive_their_parent_for_long_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("declarative_train.run.storage.run_lock.ORPHANS_S", 0.2)
    process = holder(tmp_path, 2.0)
    process.kill()
    process.communicate()
    with pytest.raises(RunFailure, match=f"process {process.pid} on this machine"):
        RunLock().take(tmp_path)


def test_another_machine_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = RunLock()
    lock.take(tmp_path)
    monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
    with pytest.raises(RunFailure, match=f"process {os.getpid()} on the machine "):
        RunLock().take(tmp_path)
    lock.release()


def test_without_locks_a_run_goes_on_and_removes_nothing(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    first = runs.go(directory, DIGITS, max_steps=5)
    partial = first.run_dir / "checkpoints" / ".step_00000006.partial"
    partial.mkdir()
    monkeypatch.setattr(fcntl, "flock", refuse)
    second = runs.go(directory, DIGITS, resume="auto", max_steps=1)
    assert (second.code, second.run_dir) == (0, first.run_dir)
    said = f"{first.run_dir} cannot be locked (operation not supported): another process could write to it"
    assert [event.message for event in second.of(Notice)].count(said) == 1


def test_what_a_save_that_was_cut_short_left_is_removed(directory: Path) -> None:
    first = runs.go(directory, DIGITS, max_steps=5)
    root = first.run_dir / "checkpoints"
    (root / ".step_00000006.partial").mkdir()
    (root / ".step_00000006.partial" / "__0_0.distcp").write_bytes(b"half")
    (root / "step_00000003").mkdir()
    assert runs.go(directory, DIGITS, resume="auto", max_steps=1).code == 0
    assert sorted(path.name for path in root.iterdir()) == ["step_00000005", "step_00000006"]
    assert not (first.run_dir / "lock").exists()


def test_a_run_that_is_going_on_is_not_gone_on_with(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = merged(DIGITS, LONG)
    plan = saved(directory, recipe)
    process = start(plan, "slow")
    wait_for_steps(directory, 41)
    (run_dir,) = (directory / "runs" / "made").iterdir()
    partial = run_dir / "checkpoints" / ".step_99999999.partial"
    partial.mkdir()
    for resume in ("auto", str(run_dir), str(run_dir / "checkpoints")):
        assert run(compiled(directory, recipe), resume=resume, quiet=True) == 3
        error = capsys.readouterr().err
        assert error.startswith(f"dtrain: the run in {run_dir} is still running: process {process.pid} on this machine")
        assert error.count("\n") == 1
    assert partial.exists()
    process.send_signal(signal.SIGTERM)
    code, errors = finish(process)
    assert code == 75, errors
    _, events = runs.newest(directory)
    assert [event for event in events if isinstance(event, RunEnded)]
    steps = [event.step for event in events if isinstance(event, StepDone)]
    assert steps == list(range(1, len(steps) + 1))
    assert list((directory / "runs" / "made").iterdir()) == [run_dir]
    last = steps[-1]
    done = runs.go(directory, recipe, resume="auto", max_steps=1)
    assert (done.code, done.run_dir, done.of(StepDone)[-1].step) == (0, run_dir, last + 1)
    assert not partial.exists()


def test_after_its_parent_was_killed_a_run_can_be_gone_on_with_at_once(directory: Path) -> None:
    """Its ranks hear of it, save and leave; who goes on waits for them."""
    recipe = merged(merged(DIGITS, LONG), WAYS["ddp 2"])
    process = start(saved(directory, recipe), "slow")
    wait_for_steps(directory, 21)
    process.kill()
    while process.pid in session(process.pid):  # a busy kernel takes its time, and who is not gone yet holds the run
        time.sleep(0.01)
    done = runs.go(directory, recipe, resume="auto", max_steps=1)
    process.communicate()
    assert done.code == 0
    assert not session(process.pid)
    steps = [event.step for event in done.of(StepDone)]
    assert steps == list(range(1, len(steps) + 1))
    assert list((directory / "runs" / "made").iterdir()) == [done.run_dir]
