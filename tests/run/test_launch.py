"""Ranks start, work, and always leave: the culprit is named once, the exit code is right, nobody stays behind."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from declarative_train.engine.checkpoints.format import HashingFileSystem
from declarative_train.engine.checkpoints.store import CheckpointStore
from declarative_train.engine.failures import RunFailure, describe_failure, explain, limit_s
from declarative_train.plan.codec import to_json
from declarative_train.plan.plan import Plan
from declarative_train.run import processes
from declarative_train.run.event import CheckpointSaved, EpochDone, Event, RunEnded, RunStarted, StepDone
from declarative_train.run.launch import run
from declarative_train.run.sinks.jsonl import read_events
from tests.engine.launched import finish, saved, start, wait_for_steps, wait_until_logged
from tests.engine.made_recipes import DIGITS, compiled, merged, write_data

GONE_S = 10


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_data(tmp_path)
    return tmp_path


def on(mode: str, gpus: int, **training: Any) -> dict[str, Any]:
    parallelism: Any = mode
    if mode == "pipeline":
        parallelism = {"pipeline": {"stages": gpus, "microbatches": 4, "cut_before": ["logits"]}}
    at_once = {"background": False}  # a checkpoint is reported, and fails, at its own step
    how = {"parallelism": parallelism, "layout": {"gpus": gpus}, "training": training, "checkpoint": at_once}
    return merged(DIGITS, how)


def run_dir(directory: Path) -> Path:
    (found,) = (directory / "runs" / "made").iterdir()
    return found


def events(directory: Path) -> list[Event]:
    return read_events(run_dir(directory) / "events.jsonl")


@pytest.mark.parametrize(("mode", "gpus"), [("single", 1), ("dp", 2), ("ddp", 2), ("fsdp", 2)])
def test_a_run_from_start_to_end(directory: Path, mode: str, gpus: int) -> None:
    code, errors = finish(start(saved(directory, on(mode, gpus))))
    assert code == 0, errors
    assert "Traceback" not in errors
    assert "Warning" not in errors
    found = events(directory)
    started, ended = found[0], found[-1]
    assert isinstance(started, RunStarted)
    assert isinstance(ended, RunEnded)
    assert (started.mode, started.device) == (mode, "cpu")
    assert started.num_ranks == (gpus if mode in ("ddp", "fsdp") else 1)
    assert (ended.status, ended.step) == ("finished", 14)
    assert [event.epoch for event in found if isinstance(event, EpochDone)] == [1, 2]
    assert ended.values["validation/accuracy"] > 0.6
    assert {path.name for path in run_dir(directory).iterdir() if "tfevents" not in path.name} == {
        "run.json",
        "plan.json",
        "events.jsonl",
        "checkpoints",
    }


def test_two_ranks_tell_the_same_story_as_one(directory: Path) -> None:
    stories = []
    for mode, gpus in (("single", 1), ("ddp", 2)):
        code, errors = finish(start(saved(directory, on(mode, gpus, precision="fp64", clip_grad_norm=1.0))))
        assert code == 0, errors
        found = events(directory)
        losses = [(event.step, event.loss, event.grad_norm) for event in found if isinstance(event, StepDone)]
        epochs = [event.values for event in found if isinstance(event, EpochDone)]
        stories.append((losses, epochs))
        run_dir(directory).rename(directory / mode)
    (losses, epochs), (other_losses, other_epochs) = stories
    assert [item[0] for item in losses] == [5, 10, 14]
    for one, other in zip(losses, other_losses, strict=True):
        assert one == pytest.approx(other, rel=1e-12)
    for mine, theirs in zip(epochs, other_epochs, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-12)


def test_a_file_that_torch_cannot_write_is_told_in_words() -> None:
    error = RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0")
    assert explain(error).startswith("a checkpoint cannot be written completely, as on a full disk; help: free some")
    assert not describe_failure(error, 0, None, 3).is_ours


@pytest.mark.parametrize(
    ("fault", "rank", "message"),
    [
        ("raise", 0, "ValueError: the dog ate the batch"),
        pytest.param("memory", 0, "out of memory", marks=pytest.mark.long),
        ("space", 1, "no space left on the device (/runs/x)"),
    ],
)
def test_the_culprit_is_named_once(directory: Path, fault: str, rank: int, message: str) -> None:
    plan = saved(directory, on("ddp", 2))
    begun_s = time.monotonic()
    process = start(plan, fault, rank, 6)
    code, errors = finish(process)
    assert code == 3
    assert f"rank {rank}, step 6: {message}" in errors
    assert errors.count("the run failed") == 1
    assert "Traceback" not in errors
    assert time.monotonic() - begun_s < 30 + GONE_S
    if fault == "raise":
        trace = run_dir(directory) / "failures" / f"rank_{rank}.txt"
        assert str(trace) in errors
        assert "the dog ate the batch" in trace.read_text()


def test_a_rank_that_cannot_write_its_report_prints_it(directory: Path) -> None:
    plan = saved(directory, merged(on("ddp", 2), {"checkpoint": {"every": "1 steps"}}))
    code, errors = finish(start(plan, "full disk", 0, 6))
    assert code == 3
    assert errors.count("rank 0, step 6: no space left on the device (/runs/x)") == 1
    assert "Traceback" not in errors
    assert errors.endswith(f"continue from step 5: the same command with --resume {run_dir(directory)}\n")
    (saved_s,) = (
        each.time_unix_s for each in events(directory) if isinstance(each, CheckpointSaved) and each.step == 5
    )
    assert time.time() - saved_s < 30 + GONE_S


def test_a_late_rank_exits_where_it_cannot_write_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr(processes, "exit_process", codes.append)
    processes.exit_late(tmp_path / "none", True)
    processes.exit_late(tmp_path / "none", False)
    assert codes == [3, 143]


def test_a_killed_rank_is_named(directory: Path) -> None:
    code, errors = finish(start(saved(directory, on("ddp", 2)), "kill", 1, 6))
    assert code == 3
    assert "rank 1" in errors
    assert "SIGKILL" in errors
    assert "memory" in errors
    assert errors.count("the run failed") == 1


@pytest.mark.long
def test_a_stopped_rank_is_named_and_not_the_one_that_waits_for_it(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DTRAIN_TIMEOUT_S", "3")
    code, errors = finish(start(saved(directory, on("ddp", 2)), "stop", 1, 6))
    assert code == 3
    assert re.search(
        r"dtrain: the run failed: rank 1 did not answer .*; rank 0 waits in step 6, all_reduce of ", errors
    )
    assert errors.count("the run failed") == 1


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", ["ddp", "fsdp", "pipeline"])
@pytest.mark.parametrize(("fault", "words"), [("raise", "step 6: ValueError"), ("kill", "rank 1")])
def test_the_culprit_is_named_every_time(directory: Path, mode: str, fault: str, words: str) -> None:
    path = saved(directory, on(mode, 2))
    for _ in range(6):
        code, errors = finish(start(path, fault, 1, 6))
        assert code == 3
        assert "rank 1" in errors
        assert words in errors


def test_four_ranks_and_the_last_one_fails(directory: Path) -> None:
    code, errors = finish(start(saved(directory, on("ddp", 4)), "raise", 3, 6))
    assert code == 3
    assert "rank 3, step 6: ValueError" in errors


@pytest.mark.parametrize("stage", [pytest.param(0, marks=pytest.mark.long), 1])
def test_a_layer_that_fails_in_a_pipeline_is_told_by_its_cause(directory: Path, stage: int) -> None:
    code, errors = finish(start(saved(directory, on("pipeline", 2)), "in a stage", stage, 6))
    assert code == 3
    assert f"rank {stage} (stage {stage}), step 6: ValueError: the dog ate the batch\n" in errors
    assert "failed to run forward" in (run_dir(directory) / "failures" / f"rank_{stage}.txt").read_text()


def test_one_process_fails_without_a_rank(directory: Path) -> None:
    code, errors = finish(start(saved(directory, on("single", 1)), "raise", 0, 6))
    assert code == 3
    assert "the run failed: step 6: ValueError: the dog ate the batch" in errors
    assert "Traceback" not in errors


LONG = {"epochs": None, "steps": 100_000}


@pytest.mark.parametrize(
    ("mode", "gpus", "number"),
    [
        ("single", 1, signal.SIGINT),
        ("ddp", 2, signal.SIGTERM),
        pytest.param("single", 1, signal.SIGTERM, marks=pytest.mark.long),
        pytest.param("fsdp", 2, signal.SIGTERM, marks=pytest.mark.long),
        pytest.param("pipeline", 2, signal.SIGTERM, marks=pytest.mark.long),
    ],
)
def test_a_signal_saves_and_the_run_goes_on_later(directory: Path, mode: str, gpus: int, number: int) -> None:
    plan = saved(directory, on(mode, gpus, **LONG))
    process = start(plan, "slow", 0, 0)
    wait_for_steps(directory, 5)
    asked_s = time.monotonic()
    # Ctrl-C reaches the whole group of the terminal, SIGTERM the parent alone
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
    code, errors = finish(process)
    assert time.monotonic() - asked_s < GONE_S
    assert code == 75, errors
    found = events(directory)
    assert isinstance(found[-1], RunEnded)
    assert found[-1].status == "stopped"
    saves = [event for event in found if isinstance(event, CheckpointSaved)]
    assert saves[-1].step == found[-1].step
    store = CheckpointStore(str(run_dir(directory) / "checkpoints"))
    whole, torn = store.entries()
    assert whole[0].step == found[-1].step
    assert not torn

    process = start(plan, "slow", 0, 0, "auto")
    wait_for_steps(directory, found[-1].step + 1)
    process.send_signal(signal.SIGTERM)
    code, errors = finish(process)
    assert code == 75, errors
    assert f"resumed after step {found[-1].step}" in errors


@pytest.mark.parametrize(("mode", "gpus"), [("single", 1), ("ddp", 2)])
def test_the_second_ctrl_c_means_now(directory: Path, mode: str, gpus: int) -> None:
    process = start(saved(directory, on(mode, gpus, **LONG)), "hang", 0, 8)
    wait_for_steps(directory, 7, CheckpointSaved)  # that of the first epoch
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None
    asked_s = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    code, errors = finish(process)
    assert code == 3
    assert time.monotonic() - asked_s < 3
    assert (
        errors.count("dtrain: stopping after this step, with a checkpoint; repeat the signal (Ctrl-C) to stop at once")
        == 1
    )
    assert errors.count("dtrain: stopped at once: the last steps are in no checkpoint") == 1
    assert f"  continue from step 7: the same command with --resume {run_dir(directory)}\n" in errors


@pytest.mark.parametrize(("mode", "gpus"), [pytest.param("single", 1, marks=pytest.mark.long), ("ddp", 2)])
def test_a_rank_that_hangs_leaves_when_its_grace_is_over(
    directory: Path, mode: str, gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DTRAIN_GRACE_S", "2")
    process = start(saved(directory, on(mode, gpus, **LONG)), "hang", 0, 8)
    wait_for_steps(directory, 7, CheckpointSaved)  # that of the first epoch
    time.sleep(0.5)
    asked_s = time.monotonic()
    process.send_signal(signal.SIGTERM)
    code, errors = finish(process)
    assert code == 3
    assert time.monotonic() - asked_s < GONE_S
    words = "dtrain: stopped since no step finished within 2 s (DTRAIN_GRACE_S): the last steps are in no checkpoint"
    assert errors.count(words) == 1
    assert "continue from step 7" in errors


@pytest.mark.parametrize(
    ("mode", "gpus", "number"), [("single", 1, signal.SIGTERM), ("ddp", 2, signal.SIGTERM), ("ddp", 2, signal.SIGUSR2)]
)
def test_a_run_that_is_late_with_its_first_step_has_lost_nothing(
    directory: Path, mode: str, gpus: int, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DTRAIN_GRACE_S", "1")
    path = saved(directory, on(mode, gpus, **LONG))
    process = start(path, "slow")
    wait_for_steps(directory, 7, CheckpointSaved)
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == 75
    at = events(directory)[-1].step  # type: ignore[attr-defined]
    process = start(path, "hang", 0, at + 1, "auto")
    wait_until_logged(directory, lambda event: isinstance(event, RunStarted) and event.first_step == at)
    process.send_signal(number)
    code, errors = finish(process)
    assert code == 128 + number  # a job that goes by 75 made progress
    words = (
        "dtrain: stopped since no step finished within 1 s (DTRAIN_GRACE_S), before the first step: nothing is lost\n"
    )
    assert f"{words}  continue from step {at}: " in errors


@pytest.mark.parametrize(("mode", "gpus", "number"), [("single", 1, signal.SIGHUP), ("ddp", 2, signal.SIGUSR1)])
def test_nobody_leaves_while_a_checkpoint_is_being_written(
    directory: Path, mode: str, gpus: int, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DTRAIN_GRACE_S", "3")
    process = start(saved(directory, merged(on(mode, gpus, **LONG), {"checkpoint": None})), "slow save")
    wait_for_steps(directory, 5)
    process.send_signal(number)
    code, errors = finish(process)
    assert code == 75, errors
    (whole,), torn = CheckpointStore(str(run_dir(directory) / "checkpoints")).entries()
    assert whole.step == events(directory)[-1].step  # type: ignore[attr-defined]
    assert not torn


def test_a_checkpoint_that_takes_too_long_is_given_up(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTRAIN_GRACE_S", "3")
    monkeypatch.setenv("DTRAIN_SAVE_S", "1.5")
    process = start(saved(directory, merged(on("ddp", 2, **LONG), {"checkpoint": None})), "slow save")
    wait_for_steps(directory, 5)
    asked_s = time.monotonic()
    process.send_signal(signal.SIGTERM)
    code, errors = finish(process)
    assert time.monotonic() - asked_s < GONE_S  # a rank whose part is written does not wait to be killed
    assert code == 3
    assert errors.count("dtrain: stopped since the checkpoint was not written within 1.5 s (DTRAIN_SAVE_S): ") == 1


def test_a_hangup_that_nohup_ignores_is_ignored(directory: Path) -> None:
    process = start(saved(directory, on("single", 1, **LONG)), "slow", ignored=(signal.SIGHUP,))
    wait_for_steps(directory, 5)
    process.send_signal(signal.SIGHUP)
    wait_for_steps(directory, 15)
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == 75


def test_a_limit_that_is_no_time_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTRAIN_GRACE_S", "soon")
    with pytest.raises(RunFailure, match="DTRAIN_GRACE_S is `soon`, not a number of seconds above 0"):
        limit_s("DTRAIN_GRACE_S")


def test_no_checkpoint_section_still_saves_when_asked_to_stop(directory: Path) -> None:
    plan = saved(directory, merged(on("ddp", 2, **LONG), {"checkpoint": None}))
    process = start(plan, "slow")
    wait_for_steps(directory, 5)
    process.send_signal(signal.SIGUSR2)
    code, errors = finish(process)
    assert code == 75, errors
    assert len(CheckpointStore(str(run_dir(directory) / "checkpoints")).entries()[0]) == 1


def test_a_plan_that_wants_gpus_is_refused_where_there_are_none(directory: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    code, errors = finish(start(saved(directory, merged(on("ddp", 2), {"layout": {"device": "cuda"}}))))
    assert code == 3
    assert errors.startswith("dtrain: the layout is for 2 GPUs, and no GPU is visible here")


def test_auto_says_in_one_line_that_it_runs_on_cpu(directory: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    code, errors = finish(start(saved(directory, merged(on("ddp", 2), {"layout": {"device": "auto"}}))))
    assert code == 0, errors
    assert "note: no GPU here: 2 ranks on CPU" in errors


def test_a_run_folder_that_cannot_be_made(directory: Path) -> None:
    plan = saved(directory, on("single", 1))  # lint would have seen it
    (directory / "runs").write_text("a file")
    code, errors = finish(start(plan))
    assert code == 3
    assert errors.startswith(f"dtrain: the run's folder {directory / 'runs' / 'made'}")
    assert f"cannot be created: {directory / 'runs'} is a file; help: set `logging.dir` to a writable folder" in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("number", "words"), [(errno.EACCES, "permission denied"), (errno.ENOSPC, "no space left on device")]
)
def test_a_disk_that_refuses_the_run_folder(
    directory: Path, number: int, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(self: Path, *args: Any, **settings: Any) -> None:
        raise OSError(number, os.strerror(number), str(self))

    plan = compiled(directory, on("ddp", 2))
    monkeypatch.setattr(Path, "mkdir", refuse)
    assert run(plan) == 3
    error = capsys.readouterr().err
    assert f"cannot be created: {words}; help: set `logging.dir` to a writable folder" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("mode", ["single", pytest.param("ddp", marks=pytest.mark.long)])
def test_a_run_folder_that_cannot_be_written_any_more(
    directory: Path, mode: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(self: CheckpointStore, step: int) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), self.path(step))

    monkeypatch.setattr(CheckpointStore, "prepare", refuse)
    assert run(compiled(directory, on(mode, 1 if mode == "single" else 2))) == 3
    error = capfd.readouterr().err
    assert "step 7: cannot write to the run's folder, which `logging.dir` names: read-only file system (" in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("mode", "rank"),
    [("fsdp", 1), *(pytest.param(*each, marks=pytest.mark.long) for each in (("fsdp", 0), ("pipeline", 1)))],
)
def test_a_rank_that_cannot_write_its_part_of_a_checkpoint(
    directory: Path, mode: str, rank: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    right = HashingFileSystem.create_stream

    def refuse(self: HashingFileSystem, path: str, how: str) -> Any:
        if os.environ.get("RANK") == str(rank) and path.endswith(".distcp"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return right(self, path, how)

    monkeypatch.setattr(HashingFileSystem, "create_stream", refuse)
    assert run(compiled(directory, on(mode, 2))) == 3
    error = capfd.readouterr().err
    where = f"rank {rank}, step 7" if mode == "fsdp" else f"rank {rank} (stage {rank}), step 7"
    assert f"{where}: no space left on the device (" in error
    assert f"__{rank}_0.distcp); help: free some" in error
    assert error.count("the run failed") == 1
    assert "Checkpoint" not in error
    assert "Traceback" not in error


def test_the_ranks_leave_the_folder_of_a_checkpoint_to_rank_0(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A rank that makes it while rank 0 takes away what an earlier try left fails now and then, or takes it away."""
    right = CheckpointStore.prepare

    def late(self: CheckpointStore, step: int) -> str:
        time.sleep(0.3)
        assert not self.has(self.partial_path(step))
        return right(self, step)

    monkeypatch.setattr(CheckpointStore, "prepare", late)
    assert run(compiled(directory, on("fsdp", 2))) == 0, capfd.readouterr().err


def test_a_plan_for_several_machines_needs_the_number_of_this_one(directory: Path) -> None:
    plan = compiled(directory, on("ddp", 2))
    far: Plan = replace(plan, layout=replace(plan.layout, num_nodes=2))
    path = directory / "far.json"
    path.write_text(to_json(far))
    code, errors = finish(start(path))
    assert code == 3
    assert "dtrain run RECIPE --node $NODE --head $HEAD" in errors


def test_a_data_file_that_went_away_is_one_message(directory: Path) -> None:
    path = saved(directory, on("ddp", 2))
    (directory / "data.npz").unlink()
    code, errors = finish(start(path))
    assert code == 3
    assert "data.npz" in errors
    assert errors.count("the run failed") == 1
    assert "Traceback" not in errors


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", ["ddp", "fsdp", "pipeline"])
def test_every_run_of_many_leaves_cleanly(directory: Path, mode: str) -> None:
    path = saved(directory, on(mode, 2))
    for _ in range(25):
        code, errors = finish(start(path))
        assert code == 0, errors
        assert "terminate" not in errors
        assert json.loads((run_dir(directory) / "plan.json").read_text())["name"] == "made"
        run_dir(directory).rename(directory / f"run_{time.monotonic_ns()}")


@pytest.mark.parametrize(
    ("before", "wanted"),
    [pytest.param("torch.set_num_threads(1)", 2, marks=pytest.mark.long), ("torch.set_num_threads(2)", 1)],
)
def test_a_parent_with_an_openmp_pool_gives_its_ranks_one_thread(before: str, wanted: int) -> None:
    code = (
        f"import torch\n{before}\n"
        "torch.exp(torch.rand(1 << 20))\n"
        "from declarative_train.run.processes import safe_threads\n"
        "torch.set_num_threads(1)\n"
        f"assert safe_threads(2) == {wanted}\n"
        "assert safe_threads(1) == 1"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env=environment)
