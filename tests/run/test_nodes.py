"""`dtrain run` as the agent of a node, on machines that are network namespaces: nodes meet, train, fail, come back."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from declarative_train.app.main import main
from declarative_train.app.records.record import read_record
from declarative_train.run.event import CheckpointSaved, Event, RunEnded, RunStarted
from declarative_train.run.sinks.jsonl import read_events
from tests.engine import runs
from tests.engine.made_recipes import DIGITS, merged, write_data, write_recipe
from tests.machines import Machine, machines
from tests.shell_lines import LAUNCHING, find_line
from tests.started import Started, family, finish, ranks_below

PORT = 29544
LIMIT_S = 60


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setenv("DTRAIN_TIMEOUT_S", "40")
    write_data(tmp_path)
    return tmp_path


def recipe(directory: Path, nodes: int | str = 2, changes: dict[str, Any] | None = None, per_node: int = 1) -> str:
    layout = {"gpus": None, "nodes": nodes, "gpus_per_node": per_node}
    several = merged(DIGITS, {"parallelism": "ddp", "layout": layout})
    return str(write_recipe(directory, merged(several, changes or {})))


ENDLESS = {"training": {"epochs": None, "steps": 1_000_000}, "checkpoint": {"every": "20 steps", "best": None}}


def agent(machine: Machine, number: int, path: str, head: str, *words: str) -> Started:
    line = find_line(LAUNCHING, "dtrain run RECIPE --node")
    for name, value in (("RECIPE", path), ("$NODE", str(number)), ("$HEAD", head)):
        line = line.replace(name, value)
    return machine.start("declarative_train", *line.split()[1:], "--quiet", *words)


@pytest.fixture
def nodes() -> Iterator[list[Machine]]:
    with machines(2) as made:
        yield made


def events(directory: Path) -> list[Event]:
    (path,) = (directory / "runs" / "made").glob("*/events.jsonl")
    return read_events(path)


def wait_until(is_so: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    deadline_s = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def num_saved(directory: Path) -> int:
    paths = (directory / "runs" / "made").glob("*/events.jsonl")
    return sum(isinstance(event, CheckpointSaved) for path in paths for event in read_events(path))


def failures(said: list[tuple[int, str, str]]) -> list[str]:
    return [line for _, _, errors in said for line in errors.splitlines() if "the run failed" in line]


@pytest.mark.parametrize(
    ("version", "by_name"), [(4, False), (4, True), (6, False)], ids=["an address", "a name", "IPv6 alone"]
)
def test_two_nodes_train(directory: Path, version: int, by_name: bool) -> None:
    path = recipe(directory)
    with machines(2, version=version) as (first, second):
        address = f"[{first.address}]" if version == 6 else first.address
        head = f"{first.name if by_name else address}:{PORT}"
        started = [agent(second, 1, path, head), agent(first, 0, path, head)]
        said = [finish(each) for each in started]
    assert [code for code, _, _ in said] == [0, 0], said
    begun, *_, ended = events(directory)
    assert isinstance(begun, RunStarted)
    assert (begun.num_ranks, begun.mode) == (2, "ddp")
    assert isinstance(ended, RunEnded)
    assert ended.status == "finished"
    assert "state" in said[1][1]
    assert said[0][1] == ""
    assert own_lines(said[0][2] + said[1][2]) == []


def test_a_mistake_in_the_recipe_is_reported_by_node_0_alone(directory: Path, nodes: list[Machine]) -> None:
    path = recipe(directory, changes={"model": {"graph": {"act": {"type": "relo"}}}})
    started = [agent(each, number, path, nodes[0].address) for number, each in enumerate(nodes)]
    said = [finish(each) for each in started]
    assert [code for code, _, _ in said] == [1, 1]
    assert said[0][2].count("error[") == 1
    assert own_lines(said[1][2]) == []


@pytest.mark.long
def test_a_late_node_is_waited_for_aloud(directory: Path, nodes: list[Machine]) -> None:
    path, head = recipe(directory), f"{nodes[0].address}:{PORT}"
    first = agent(nodes[0], 0, path, head)
    wait_until(lambda: "dtrain: waiting for node 1 of 2 (10 s)\n" in first.errors())
    second = agent(nodes[1], 1, path, head)
    said = [finish(each) for each in (first, second)]
    assert [code for code, _, _ in said] == [0, 0], said


@pytest.mark.long
def test_a_node_waits_aloud_for_the_head(directory: Path, nodes: list[Machine]) -> None:
    second = agent(nodes[1], 1, recipe(directory), f"{nodes[0].address}:{PORT}")
    wait_until(
        lambda: f"waiting for node 0 at {nodes[0].address}:{PORT}: connection refused (10 s)\n" in second.errors()
    )
    second.send_signal(signal.SIGTERM)
    code, _, errors = finish(second)
    assert code == 143
    assert errors.splitlines()[-1] == (
        "dtrain: stopped while it waited for other nodes, before the first step: nothing is lost"
    )


def test_a_port_in_use_is_one_message(directory: Path, nodes: list[Machine]) -> None:
    """Two runs on one machine, with the same port."""
    path, head = recipe(directory), f"{nodes[0].address}:{PORT}"
    first = agent(nodes[0], 0, path, head)
    wait_until(lambda: has_begun(first))
    code, _, errors = finish(agent(nodes[0], 0, path, head))
    first.send_signal(signal.SIGTERM)
    assert finish(first)[0] == 143
    assert code == 3
    assert errors == (
        f"dtrain: cannot listen on port {PORT} of box0: address already in use; help: set the port of --head to a free "
        "port, the same on every machine\n"
    )


def has_begun(process: Started) -> bool:
    """Return whether the agent serves its store."""
    return len(family(process.pid)) > 1


def test_a_number_that_is_given_twice_is_refused(directory: Path, nodes: list[Machine]) -> None:
    path, head = recipe(directory, 3), f"{nodes[0].address}:{PORT}"
    first, second, again = (
        agent(nodes[0], 0, path, head),
        agent(nodes[1], 1, path, head),
        agent(nodes[0], 1, path, head),
    )
    refused = [process for process in (second, again) if wait_for_one((second, again)) is process]
    code, _, errors = finish(refused[0])
    assert code == 3
    assert re.search(r"dtrain: node 1: another process is node 1, on box[01]; help: number the", errors)
    first.send_signal(signal.SIGTERM)
    others = [each for each in (first, second, again) if each is not refused[0]]
    assert [finish(each)[0] for each in others] == [143, 143]


def wait_for_one(processes: tuple[Started, ...]) -> Started:
    wait_until(lambda: any(process.poll() is not None for process in processes))
    return next(process for process in processes if process.poll() is not None)


@pytest.mark.parametrize("number", [0, 1])
def test_a_signal_to_one_node_stops_all_with_a_checkpoint(directory: Path, nodes: list[Machine], number: int) -> None:
    path, head = recipe(directory, changes=ENDLESS), f"{nodes[0].address}:{PORT}"
    started = [agent(each, place, path, head) for place, each in enumerate(nodes)]
    wait_until(lambda: num_saved(directory) > 0)
    started[number].send_signal(signal.SIGTERM)
    said = [finish(each) for each in started]
    assert [code for code, _, _ in said] == [75, 75], said
    *_, ended = events(directory)
    assert isinstance(ended, RunEnded)
    assert ended.status == "stopped"


def start_two(directory: Path, nodes: list[Machine], **layout: Any) -> tuple[list[Started], str, str]:
    path = recipe(directory, changes=merged(ENDLESS, {"layout": layout}))
    head = f"{nodes[0].address}:{PORT}"
    started = [agent(each, place, path, head) for place, each in enumerate(nodes)]
    wait_until(lambda: num_saved(directory) > 0)
    return started, path, head


@pytest.mark.parametrize("number", [0, 1])
def test_a_killed_rank_is_reported_once_with_its_node(directory: Path, nodes: list[Machine], number: int) -> None:
    started, _, _ = start_two(directory, nodes)
    os.kill(ranks_below(started[number])[number], signal.SIGKILL)
    said = [finish(each) for each in started]
    assert [code for code, _, _ in said] == [3, 3], said
    (line,) = failures(said)
    assert line.startswith(f"dtrain: the run failed: rank {number} (node {number} (box{number})), step ")
    assert "SIGKILL" in line
    assert "continue from step" in said[0][2]


@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_lost_node_ends_the_run_with_its_name(directory: Path, nodes: list[Machine], number: int) -> None:
    """Its agent and its rank are killed at once, as where the power fails."""
    started, _, _ = start_two(directory, nodes)
    for pid in reversed(family(started[number].pid)):
        os.kill(pid, signal.SIGKILL)
    finish(started[number])
    code, _, errors = finish(started[1 - number])
    assert code == 3
    assert ("node 1 (box1) did not answer for" if number else "node 0 at 10.77.0.1:29544 is lost") in errors
    assert [line for line in errors.splitlines() if not line.startswith(("dtrain: ", "  continue from "))] == []
    if number:
        (run,) = (directory / "runs" / "made").iterdir()
        record = read_record(str(run))
        assert record is not None
        assert record.reason.startswith("node 1 (box1) did not answer for")


def own_lines(errors: str) -> list[str]:
    """Return the lines that are not torch's: it warns that an address has no name."""
    return [line for line in errors.splitlines() if not line.startswith("[W")]


def sessions(directory: Path) -> list[RunStarted]:
    paths = (directory / "runs" / "made").glob("*/events.jsonl")
    return [event for path in paths for event in read_events(path) if isinstance(event, RunStarted)]


def end(started: list[Started]) -> list[tuple[int, str, str]]:
    for each in started:
        each.send_signal(signal.SIGTERM)
    return [finish(each) for each in started]


def test_a_run_starts_again_when_a_rank_was_killed(directory: Path, nodes: list[Machine]) -> None:
    started, _, _ = start_two(directory, nodes, max_restarts=2)
    os.kill(ranks_below(started[1])[1], signal.SIGKILL)
    wait_until(lambda: len(sessions(directory)) == 2)
    said = end(started)
    assert [code for code, _, _ in said] == [75, 75], said
    assert len(failures(said)) == 1
    assert "dtrain: the run starts again" in said[0][2]
    again = sessions(directory)[1].first_step
    assert again >= 20
    assert again % 20 == 0
    assert len(list((directory / "runs" / "made").iterdir())) == 1


@pytest.mark.parametrize("number", [0, 1])
def test_a_node_is_killed_and_comes_back(directory: Path, nodes: list[Machine], number: int) -> None:
    started, path, head = start_two(directory, nodes, max_restarts=2)
    for pid in reversed(family(started[number].pid)):
        os.kill(pid, signal.SIGKILL)
    finish(started[number])
    started[number] = agent(nodes[number], number, path, head)
    wait_until(lambda: len(sessions(directory)) == 2)
    assert sessions(directory)[1].first_step >= 20
    said = end(started)
    assert [code for code, _, _ in said] == [75, 75], said
    assert len(list((directory / "runs" / "made").iterdir())) == 1


@pytest.mark.long
def test_a_range_of_nodes_shrinks_and_grows(directory: Path) -> None:
    """1 node, then 3, of which the batch fits 2 or 3, then 2: one run, and the same samples in each step."""
    path = recipe(directory, "1..3", ENDLESS)
    with machines(3) as made:
        head = f"{made[0].address}:{PORT}"
        started = [agent(made[0], 0, path, head)]
        wait_until(lambda: num_saved(directory) > 0)
        started += [agent(made[number], number, path, head) for number in (1, 2)]
        wait_until(lambda: [each.num_ranks for each in sessions(directory)] == [1, 3])
        saved = num_saved(directory)
        wait_until(lambda: num_saved(directory) > saved)
        for pid in reversed(family(started[1].pid)):
            os.kill(pid, signal.SIGKILL)
        finish(started.pop(1))
        wait_until(lambda: [each.num_ranks for each in sessions(directory)] == [1, 3, 2])
        said = end(started)
    assert [code for code, _, _ in said] == [75, 75], said
    assert len(list((directory / "runs" / "made").iterdir())) == 1
    first = [each.first_step for each in sessions(directory)]
    assert first[0] < first[1] < first[2]
    assert "another node has joined: the run continues with it after a checkpoint" in said[0][2]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_four_nodes_become_two_and_four_again(directory: Path) -> None:
    """The parameters are those of one process, since the global batch and its samples stay the same."""
    endless = merged(ENDLESS, {"training": {"precision": "fp64"}})
    path = recipe(directory, "1..4", endless)
    with machines(4) as made:
        head = f"{made[0].address}:{PORT}"
        started = {number: agent(made[number], number, path, head) for number in range(4)}

        def wait_for_ranks(number: int) -> None:
            wait_until(lambda: bool(sessions(directory)) and sessions(directory)[-1].num_ranks == number, 3 * LIMIT_S)
            saved = num_saved(directory)
            wait_until(lambda: num_saved(directory) > saved, 3 * LIMIT_S)

        wait_for_ranks(4)
        for number in (1, 3):
            for pid in reversed(family(started[number].pid)):
                os.kill(pid, signal.SIGKILL)
            finish(started.pop(number))
        wait_for_ranks(2)
        started |= {number: agent(made[number], number, path, head) for number in (1, 3)}
        wait_for_ranks(4)
        said = end(list(started.values()))
    assert [code for code, _, _ in said] == [75] * 4, said
    assert own_lines("".join(errors for _, _, errors in said[1:])) == []  # the head alone reports
    (run,) = (directory / "runs" / "made").iterdir()
    alone = directory / "alone"
    alone.mkdir()
    write_data(alone)
    steps = max(runs.checkpoints(run))
    single = runs.go(alone, merged(DIGITS, endless), max_steps=steps)
    runs.assert_same_tensors(runs.last_tensors(single.run_dir), runs.last_tensors(run), rtol=1e-9, atol=1e-12)


@pytest.mark.long
def test_a_spare_node_takes_the_place_of_a_lost_one(directory: Path) -> None:
    path = recipe(directory, 2, merged(ENDLESS, {"layout": {"max_restarts": 2}}))
    with machines(3) as made:
        head = f"{made[0].address}:{PORT}"
        started = [agent(made[number], number, path, head) for number in (0, 1)]
        wait_until(lambda: num_saved(directory) > 0)
        started.append(agent(made[2], 2, path, head))
        wait_until(
            lambda: "waiting for a place of another node: this node is a spare one (10 s)" in started[2].errors()
        )
        for pid in reversed(family(started[1].pid)):
            os.kill(pid, signal.SIGKILL)
        finish(started.pop(1))
        wait_until(lambda: len(sessions(directory)) == 2)
        said = end(started)
    assert [code for code, _, _ in said] == [75, 75], said
    assert "node 1 (box1) did not answer" in said[0][2]


@pytest.mark.parametrize("number", [pytest.param(0, marks=pytest.mark.long), 1])
def test_a_stopped_rank_is_named_with_what_the_others_wait_for(
    directory: Path, nodes: list[Machine], number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DTRAIN_TIMEOUT_S", "8")
    started, _, _ = start_two(directory, nodes)
    os.kill(ranks_below(started[number])[number], signal.SIGSTOP)
    said = [finish(each) for each in started]
    assert [code for code, _, _ in said] == [3, 3], said
    (line,) = failures(said)
    place = f"rank {number} (node {number} (box{number})) did not answer"
    waits = rf"rank {1 - number} waits in step \d+, \w+ of "
    assert re.search(rf"{re.escape(place)}(?: in step \d+)? for \d+ s; {waits}", line)
    (run,) = (directory / "runs" / "made").iterdir()
    assert "all_reduce" in (run / "failures" / f"waiting_{1 - number}.txt").read_text()


@pytest.mark.long
@pytest.mark.timeout(500)
def test_the_documented_line_of_mpirun_starts_agents(
    directory: Path, nodes: list[Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agents of both machines meet, and the signal that mpirun passes on stops them with a checkpoint."""
    if shutil.which("mpirun") is None:
        assert not os.environ.get("DTRAIN_REQUIRE_SLURM")
        pytest.skip("wants the package openmpi-bin")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    remote = write_ssh(directory, nodes)
    (directory / "hosts").write_text("".join(f"{each.name} slots=1\n" for each in nodes))
    line = find_line(LAUNCHING, "mpirun --hostfile").replace("$HEAD", nodes[0].address)
    line = line.replace("HOSTS", f"{directory}/hosts --allow-run-as-root --mca plm_rsh_agent {remote}")
    program = f"{sys.executable} -m declarative_train run {recipe(directory, changes=ENDLESS)} --quiet"
    words = shlex.split(line.replace("dtrain run RECIPE", program))
    with subprocess.Popen(nodes[0].command(*words), start_new_session=True) as process:
        try:
            wait_until(lambda: num_saved(directory) > 0, 2 * LIMIT_S)
            process.send_signal(signal.SIGUSR1)
            assert process.wait(2 * LIMIT_S) == 75
        finally:
            for pid in family(process.pid):
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
    begun, *_, ended = events(directory)
    assert isinstance(begun, RunStarted)
    assert isinstance(ended, RunEnded)
    assert (begun.num_ranks, ended.status) == (2, "stopped")


def write_ssh(directory: Path, nodes: list[Machine]) -> Path:
    """Write a program that runs a command on a machine as ssh does: `ssh [OPTIONS] HOST COMMAND`."""
    cases = [f'{each.name}) shift; exec {shlex.join(each.command("sh", "-c"))} "$*";;' for each in nodes]
    options = "while :; do case $1 in -o) shift 2;; -*) shift;; *) break;; esac; done"
    path = directory / "bin" / "ssh"
    path.parent.mkdir()
    path.write_text("\n".join(["#!/bin/sh", options, "case $1 in", *cases, "esac"]))
    path.chmod(0o755)
    return path


def set_variables(to: str, number: int, nodes: list[Machine], monkeypatch: pytest.MonkeyPatch) -> None:
    """Set what an engine sets on each of its machines."""
    head = nodes[0].address
    found = {
        "kubernetes": {"JOB_COMPLETION_INDEX": number},
        "trainjob": {"PET_NODE_RANK": number, "PET_NNODES": 2, "PET_MASTER_ADDR": head, "PET_MASTER_PORT": PORT},
        "skypilot": {
            "SKYPILOT_NODE_RANK": number,
            "SKYPILOT_NUM_NODES": 2,
            "SKYPILOT_NODE_IPS": "\n".join(each.address for each in nodes),
        },
    }
    for name, value in found[to].items():
        monkeypatch.setenv(name, str(value))


@pytest.mark.long
@pytest.mark.timeout(500)
@pytest.mark.parametrize("to", ["kubernetes", "trainjob", "skypilot"])
def test_the_command_of_a_job_file_starts_an_agent_on_each_node(
    directory: Path, nodes: list[Machine], to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(directory)
    words = ["launch", recipe(directory), "--to", to, "--image", "dtrain:1", "--volume", "work:/", "--output", "job"]
    assert main(words) == 0
    *_, job = yaml.safe_load_all((directory / "job" / "job.yaml").read_text())
    if to == "skypilot":
        part = {"command": shlex.split(job["run"])}
    else:
        spec = job["spec"]
        part = spec["trainer"] if to == "trainjob" else spec["template"]["spec"]["containers"][0]
    for variable in part.get("env", ()):
        monkeypatch.setenv(variable["name"], variable["value"])
    for each in nodes:
        with open(each.hosts, "a") as file:  # the headless Service of Kubernetes
            file.write(f"{nodes[0].address} made-0.made\n")
    started = []
    for number, each in enumerate(nodes):
        set_variables(to, number, nodes, monkeypatch)
        started.append(each.start("declarative_train", *part["command"][1:], cwd=directory))
    said = [finish(each, 2 * LIMIT_S) for each in started]
    assert [code for code, _, _ in said] == [0, 0], said
    assert [each.num_ranks for each in sessions(directory)] == [2]
    assert [path.name for path in (directory / "runs" / "made").iterdir()] == ["job"]


@pytest.mark.long
@pytest.mark.timeout(500)
def test_the_script_for_ssh_starts_an_agent_on_each_node(
    directory: Path, nodes: list[Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(directory)
    hosts = ",".join(each.name for each in nodes)
    assert main(["launch", recipe(directory), "--to", "ssh", "--hosts", hosts, "--output", "job"]) == 0
    programs = write_ssh(directory, nodes).parent
    (programs / "dtrain").write_text(f'#!/bin/sh\nexec {sys.executable} -m declarative_train "$@"\n')
    (programs / "dtrain").chmod(0o755)
    script = directory / "job" / "job.sh"
    script.write_text(re.sub(r"exec \S+ run", f"exec {programs}/dtrain run", script.read_text()))
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    done = subprocess.run(["bash", str(script)], capture_output=True, text=True, timeout=4 * LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert [each.num_ranks for each in sessions(directory)] == [2]
