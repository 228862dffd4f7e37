"""The script for Slurm in docs/launching.md, and those that `dtrain launch` writes, on a real Slurm that the test
starts here: one controller, and one node or two.

Where Slurm is not installed it is skipped; with DTRAIN_REQUIRE_SLURM that is a failure.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import pytest

from declarative_train.run.event import CheckpointSaved, Event, RunEnded, RunStarted, StepDone
from declarative_train.run.sinks.jsonl import read_events
from tests.engine import runs
from tests.engine.made_recipes import DIGITS, merged, write_data, write_recipe
from tests.machines import machines
from tests.shell_lines import LAUNCHING, find_line
from tests.slurm import Run, cluster, prepare, wait_until

Of = TypeVar("Of", bound=Event)
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
ROOT = Path(__file__).parent.parent
ENDLESS = {"training": {"epochs": None, "steps": 100_000_000}, "checkpoint": None, "evaluation": None}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for the cluster with a short path: slurmstepd makes a socket in it, whose path has at most 107 bytes."""
    with TemporaryDirectory(prefix="slurm-", dir="/tmp", ignore_cleanup_errors=True) as name:
        yield Path(name) / "c"


@pytest.fixture
def slurm(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """A cluster of one node, which commands of Slurm reach. Jobs work in the folder of the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    prepare(monkeypatch, folder)
    with cluster(folder) as run:
        yield run


@pytest.fixture
def two_nodes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """A cluster of two nodes with names of their own, each of which is 127.0.1.1 on itself."""
    prepare(monkeypatch, folder)
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    with machines(3) as made, cluster(folder, made) as run:
        yield run


def documented(directory: Path, recipe: Path) -> Path:
    """Write the script of the page with this recipe, and with the ranks that there are GPUs for here."""
    page = (ROOT / "docs" / "launching.md").read_text()
    (script,) = re.findall(r"```bash\n(#!/bin/bash\n#SBATCH.*?)```", page, re.DOTALL)
    here = {"--nodes=2": "--nodes=1", "--ntasks-per-node=8": "--ntasks-per-node=2", "recipe.yaml": str(recipe)}
    for was, now in here.items():
        assert was in script
        script = script.replace(was, now)
    path = directory / "job.sh"
    path.write_text(script)
    return path


def found(directory: Path, kind: type[Of]) -> list[Of]:
    """Return the events of this kind of all runs."""
    paths = (directory / "runs" / "made").glob("*/events.jsonl")
    return [event for path in paths for event in read_events(path) if isinstance(event, kind)]


def has_left(output: Path, num_tasks: int) -> bool:
    """Return whether srun reported exit code 75 of so many tasks."""
    lines = re.findall(r"tasks? ([\d,-]+): Exited with exit code 75", output.read_text())
    ranges = [part.split("-") for line in lines for part in line.split(",")]
    return sum(int(part[-1]) - int(part[0]) + 1 for part in ranges) == num_tasks


def test_the_documented_job_saves_when_it_is_warned_and_goes_on_when_it_is_requeued(
    tmp_path: Path, slurm: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    write_data(tmp_path)
    two_ranks = {"parallelism": "ddp", "layout": {"gpus": 2}, "data": {"workers": 1}}
    script = documented(tmp_path, write_recipe(tmp_path, merged(DIGITS, {**ENDLESS, **two_ranks})))
    output = tmp_path / "job.log"
    job = slurm("sbatch", "--parsable", f"--output={output}", str(script)).strip()
    assert job.isdigit(), job

    def wait_for(count: int, kind: type[Event]) -> None:
        wait_until(
            lambda: len(found(tmp_path, kind)) >= count,
            lambda: f"{slurm('scontrol', 'show', 'job', job)}\n{output.read_text() if output.exists() else ''}",
        )

    for session, number in enumerate(("TERM", "USR1"), 1):
        wait_for(len(found(tmp_path, StepDone)) + 1, StepDone)
        # as --signal does when the time is nearly up: to every process of the step, not to the script
        slurm("scancel", f"--signal={number}", job)
        wait_for(session + 1, RunStarted)
        saved = found(tmp_path, CheckpointSaved)
        assert len(saved) == session
        assert found(tmp_path, RunStarted)[-1].first_step == saved[-1].step
        assert f"stopped after {saved[-1].step} steps" in output.read_text()
        # srun reports tasks that end together in one line: "tasks 0-1: Exited with exit code 75"
        wait_until(partial(has_left, output, 2 * session), output.read_text)
    assert len(list((tmp_path / "runs" / "made").iterdir())) == 1


def test_a_launched_job_of_two_nodes_goes_on_until_it_is_cancelled(
    tmp_path: Path, two_nodes: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TERM and USR1 requeue it, and an agent that was killed is started again. Then its parameters are those of one
    process after as many steps."""
    slurm = two_nodes
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path)
    layout = {"nodes": 2, "gpus_per_node": 1, "device": "cpu", "max_restarts": 3}
    endless = merged(DIGITS, merged(ENDLESS, {"training": {"precision": "fp64"}}))
    recipe = write_recipe(tmp_path, merged(endless, {"parallelism": "ddp", "layout": layout}))
    said = slurm("dtrain", "launch", str(recipe), "--to", "slurm", "--submit", "--time", "1 hour", "--output", "job")
    (job,) = re.findall(r"Submitted batch job (\d+)", said)
    output = tmp_path / "job" / f"{job}.log"

    def so_far() -> str:
        return f"{said}\n{slurm('scontrol', 'show', 'job', job)}\n{output.read_text() if output.exists() else ''}"

    def wait_for_a_step() -> None:
        steps = len(found(tmp_path, StepDone))
        wait_until(lambda: len(found(tmp_path, StepDone)) > steps, so_far)

    def wait_for_session(number: int) -> None:
        wait_until(lambda: len(found(tmp_path, RunStarted)) == number, so_far)
        assert found(tmp_path, RunStarted)[-1].first_step == found(tmp_path, CheckpointSaved)[-1].step

    for session, number in enumerate(("TERM", "USR1"), 1):
        wait_for_a_step()
        slurm("scancel", f"--signal={number}", job)
        wait_for_session(session + 1)
        wait_until(partial(has_left, output, 2 * session), output.read_text)
    wait_for_a_step()
    os.kill(agent_on("box2", tmp_path), signal.SIGKILL)
    wait_for_session(4)
    assert "Restarts=2 " in slurm("scontrol", "show", "job", job)  # not requeued again
    wait_for_a_step()
    slurm("scancel", job)
    wait_until(lambda: "JobState=CANCELLED" in slurm("scontrol", "show", "job", job), so_far)
    wait_until(lambda: len(found(tmp_path, CheckpointSaved)) == 3, so_far)
    (run,) = (tmp_path / "runs" / "made").iterdir()
    assert run.name == "job"
    text = output.read_text()
    assert "is not an address of" not in text
    assert len(re.findall(r"the run failed: node 1 \(box2\) ", text)) == 1, text
    assert {event.num_ranks for event in found(tmp_path, RunStarted)} == {2}
    alone = tmp_path / "alone"
    alone.mkdir()
    write_data(alone)
    steps = found(tmp_path, CheckpointSaved)[-1].step
    single = runs.last_tensors(runs.go(alone, endless, max_steps=steps).run_dir)
    runs.assert_same_tensors(single, runs.last_tensors(run), rtol=1e-9, atol=1e-12)


def agent_on(node: str, directory: Path) -> int:
    """Return the process of the agent on a node: of those that work in a directory, the one that started the others."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            is_there = f"SLURMD_NODENAME={node}".encode() in (folder / "environ").read_bytes().split(b"\0")
            program = (folder / "cmdline").read_bytes().split(b"\0")[0]
            if is_there and b"python" in program and (folder / "cwd").readlink() == directory:
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    (agent,) = (pid for pid, parent in parents.items() if parent not in parents)
    return agent


def test_a_launched_sweep_is_an_array(tmp_path: Path, slurm: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path)
    sweep = {"sweep": {"type": "grid", "over": {"training.optimizer.lr": [0.1, 0.01]}}}
    recipe = write_recipe(tmp_path, merged(DIGITS, sweep))
    words = ("--to", "slurm", "--sweep", "--jobs", "1", "--submit", "--output", "job")
    said = slurm("dtrain", "launch", str(recipe), *words)
    wait_until(
        lambda: len(found(tmp_path, RunEnded)) == 2,
        lambda: said + "".join(path.read_text() for path in (tmp_path / "job").glob("*.log")),
    )
    wait_until(lambda: not slurm("squeue", "--noheader").strip(), lambda: slurm("squeue"))
    assert sorted(path.name for path in (tmp_path / "runs" / "made").iterdir()) == ["job-0", "job-1"]


def test_each_element_of_an_array_is_a_run_by_itself(tmp_path: Path, slurm: Run) -> None:
    write_data(tmp_path)
    recipe = write_recipe(tmp_path, DIGITS)
    line = f"dtrain run {recipe} --quiet --set training.optimizer.lr=0.0$((SLURM_ARRAY_TASK_ID + 1))"
    slurm("sbatch", "--parsable", "--array=0-1", f"--output={tmp_path}/%a.log", "--wrap", line)
    wait_until(
        lambda: len(found(tmp_path, RunEnded)) == 2,
        lambda: "".join(path.read_text() for path in tmp_path.glob("*.log")),
    )
    assert len(list((tmp_path / "runs" / "made").iterdir())) == 2
    assert {event.num_ranks for event in found(tmp_path, RunStarted)} == {1}


def test_the_documented_line_of_srun(tmp_path: Path, slurm: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    write_data(tmp_path)
    recipe = write_recipe(tmp_path, merged(DIGITS, {"parallelism": "ddp", "layout": {"gpus": 2, "device": "cpu"}}))
    line = find_line(LAUNCHING, "srun ").replace("--ntasks-per-node=8", "--ntasks-per-node=2")
    said = slurm(*shlex.split(line.replace("RECIPE", str(recipe))))
    assert [event.status for event in found(tmp_path, RunEnded)] == ["finished"], said
    assert {event.num_ranks for event in found(tmp_path, RunStarted)} == {2}
