"""The script for Slurm in docs/launching.md, on a real Slurm that the test starts here: one controller, one node.

Where Slurm is not installed it is skipped; with DTRAIN_REQUIRE_SLURM that is a failure.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from declarative_train.run.event import CheckpointSaved, Event, RunEnded, RunStarted, StepDone
from declarative_train.run.sinks.jsonl import read_events
from tests.engine.made_recipes import DIGITS, merged, write_data, write_recipe
from tests.shell_lines import LAUNCHING, find_line

Of = TypeVar("Of", bound=Event)
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
ROOT = Path(__file__).parent.parent
LIMIT_S = 100
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel")
NODE = "localhost"
CONFIGURATION = """
ClusterName=test
SlurmctldHost={node}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={daemon}
MailProg=/bin/true
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
JobRequeue=1
SchedulerParameters=sched_interval=2,bf_interval=2
GresTypes=gpu
NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 CPUs=4 RealMemory=1000 Gres=gpu:2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def wait_until(is_so: Callable[[], bool], why: Callable[[], str]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline_s, why()
        time.sleep(0.2)


def answer(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cluster of one node, which commands of Slurm reach."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin"
    missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if missing or os.geteuid() != 0:
        assert not os.environ.get("DTRAIN_REQUIRE_SLURM"), f"not root, or not installed: {missing}"
        pytest.skip("wants root, and the packages slurm-wlm and munge")
    folder = tmp_path / "slurm"
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o600)
    controller, daemon = free_ports(2)
    names = {"folder": folder, "controller": controller, "daemon": daemon, "node": NODE, "host": socket.gethostname()}
    (folder / "slurm.conf").write_text(CONFIGURATION.format(**names))
    (folder / "gres.conf").write_text("Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n")  # two devices
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nConstrainCores=no\n")
    monkeypatch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    monkeypatch.setenv("PATH", path)
    files = [f"--{kind}-file={folder / f'munge.{kind}'}" for kind in ("key", "log", "pid", "seed")]
    munged = ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *files]
    commands = [munged, ["slurmctld", "-D"], ["slurmd", "-D", "-N", NODE]]
    processes = []
    try:
        for command in commands:
            with (folder / f"{command[0]}.out").open("wb") as out:
                processes.append(subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True))
            wait_until((folder / "munge.socket").exists, lambda: (folder / "munged.out").read_text())
        wait_until(
            lambda: answer("sinfo", "--noheader", "--format=%t").strip() == "idle",
            lambda: (folder / "slurmctld.out").read_text() + (folder / "slurmd.out").read_text(),
        )
        yield
    finally:
        answer("scancel", "--user=root")
        for process in reversed(processes):
            process.terminate()
            process.wait(timeout=60)


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
    tmp_path: Path, slurm: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    write_data(tmp_path)
    endless = {"training": {"epochs": None, "steps": 100_000_000}, "checkpoint": None, "evaluation": None}
    two_ranks = {"parallelism": "ddp", "layout": {"gpus": 2}, "data": {"workers": 1}}
    script = documented(tmp_path, write_recipe(tmp_path, merged(DIGITS, {**endless, **two_ranks})))
    output = tmp_path / "job.log"
    job = answer("sbatch", "--parsable", f"--output={output}", str(script)).strip()
    assert job.isdigit(), job

    def wait_for(count: int, kind: type[Event]) -> None:
        wait_until(
            lambda: len(found(tmp_path, kind)) >= count,
            lambda: f"{answer('scontrol', 'show', 'job', job)}\n{output.read_text() if output.exists() else ''}",
        )

    for session, number in enumerate(("TERM", "USR1"), 1):
        wait_for(len(found(tmp_path, StepDone)) + 1, StepDone)
        # as --signal does when the time is nearly up: to every process of the step, not to the script
        answer("scancel", f"--signal={number}", job)
        wait_for(session + 1, RunStarted)
        saved = found(tmp_path, CheckpointSaved)
        assert len(saved) == session
        assert found(tmp_path, RunStarted)[-1].first_step == saved[-1].step
        assert f"stopped after {saved[-1].step} steps" in output.read_text()
        # srun reports tasks that end together in one line: "tasks 0-1: Exited with exit code 75"
        wait_until(partial(has_left, output, 2 * session), output.read_text)
    assert len(list((tmp_path / "runs" / "made").iterdir())) == 1


def test_a_launched_job_is_requeued_until_it_is_cancelled(
    tmp_path: Path, slurm: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path)
    endless = {"training": {"epochs": None, "steps": 100_000_000}, "checkpoint": None, "evaluation": None}
    two_ranks = {"parallelism": "ddp", "layout": {"gpus": 2, "device": "cpu"}, "data": {"workers": 1}}
    recipe = write_recipe(tmp_path, merged(DIGITS, {**endless, **two_ranks}))
    said = answer("dtrain", "launch", str(recipe), "--to", "slurm", "--submit", "--time", "1 hour", "--output", "job")
    (job,) = re.findall(r"Submitted batch job (\d+)", said)
    output = tmp_path / "job" / f"{job}.log"

    def so_far() -> str:
        return f"{said}\n{answer('scontrol', 'show', 'job', job)}\n{output.read_text() if output.exists() else ''}"

    for session, number in enumerate(("TERM", "USR1"), 1):
        steps = len(found(tmp_path, StepDone))
        wait_until(lambda: len(found(tmp_path, StepDone)) > steps, so_far)  # noqa: B023
        answer("scancel", f"--signal={number}", job)
        wait_until(lambda: len(found(tmp_path, RunStarted)) > session, so_far)  # noqa: B023
        assert found(tmp_path, RunStarted)[-1].first_step == found(tmp_path, CheckpointSaved)[-1].step
        wait_until(partial(has_left, output, session), output.read_text)  # the agent of the node
    answer("scancel", job)
    wait_until(lambda: "JobState=CANCELLED" in answer("scontrol", "show", "job", job), so_far)
    assert [path.name for path in (tmp_path / "runs" / "made").iterdir()] == ["job"]


def test_a_launched_sweep_is_an_array(tmp_path: Path, slurm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path)
    sweep = {"sweep": {"type": "grid", "over": {"training.optimizer.lr": [0.1, 0.01]}}}
    recipe = write_recipe(tmp_path, merged(DIGITS, sweep))
    words = ("--to", "slurm", "--sweep", "--jobs", "1", "--submit", "--output", "job")
    said = answer("dtrain", "launch", str(recipe), *words)
    wait_until(
        lambda: len(found(tmp_path, RunEnded)) == 2,
        lambda: said + "".join(path.read_text() for path in (tmp_path / "job").glob("*.log")),
    )
    wait_until(lambda: not answer("squeue", "--noheader").strip(), lambda: answer("squeue"))
    assert sorted(path.name for path in (tmp_path / "runs" / "made").iterdir()) == ["job-0", "job-1"]


def test_each_element_of_an_array_is_a_run_by_itself(tmp_path: Path, slurm: None) -> None:
    write_data(tmp_path)
    recipe = write_recipe(tmp_path, DIGITS)
    line = f"dtrain run {recipe} --quiet --set training.optimizer.lr=0.0$((SLURM_ARRAY_TASK_ID + 1))"
    answer("sbatch", "--parsable", "--array=0-1", f"--output={tmp_path}/%a.log", "--wrap", line)
    wait_until(
        lambda: len(found(tmp_path, RunEnded)) == 2,
        lambda: "".join(path.read_text() for path in tmp_path.glob("*.log")),
    )
    assert len(list((tmp_path / "runs" / "made").iterdir())) == 2
    assert {event.num_ranks for event in found(tmp_path, RunStarted)} == {1}


def test_the_documented_line_of_srun(tmp_path: Path, slurm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    write_data(tmp_path)
    recipe = write_recipe(tmp_path, merged(DIGITS, {"parallelism": "ddp", "layout": {"gpus": 2, "device": "cpu"}}))
    line = find_line(LAUNCHING, "srun ").replace("--ntasks-per-node=8", "--ntasks-per-node=2")
    said = answer(*shlex.split(line.replace("RECIPE", str(recipe))))
    assert [event.status for event in found(tmp_path, RunEnded)] == ["finished"], said
    assert {event.num_ranks for event in found(tmp_path, RunStarted)} == {2}
