"""Ranks that torchrun started: rank 0 compiles for all, mistakes are told once, torchrun's report stands."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import TCPStore

from declarative_train.engine.failures import RunFailure
from declarative_train.run import launch
from declarative_train.run.event import CheckpointSaved, RunEnded, RunStarted
from declarative_train.run.rank_job import RankJob, check_disk
from declarative_train.run.sinks.jsonl import read_events
from declarative_train.run.storage.run_dir import RunPlace
from tests.engine.made_recipes import DIGITS, compiled, merged, write_data, write_recipe
from tests.shell_lines import LAUNCHING, find_line
from tests.started import Started, family, finish, start

ROOT = Path(__file__).parent.parent.parent
TWO = merged(DIGITS, {"parallelism": "ddp", "layout": {"gpus": 2}})


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_data(tmp_path)
    return tmp_path


def torchrun(directory: Path, recipe: dict[str, Any], *words: str, num_ranks: int = 2) -> tuple[int, str]:
    path = write_recipe(directory, recipe)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)),
            *("-m", "declarative_train", "run", str(path), *words),
        ],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return done.returncode, done.stderr


def two_ranks(
    directory: Path, recipe: dict[str, Any], monkeypatch: pytest.MonkeyPatch, *words: str
) -> tuple[list[int], str]:
    """Each in the environment that torchrun, mpirun or srun gives it, without the starter's own report."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    meeting_place(monkeypatch)
    words = ("declarative_train", "run", str(write_recipe(directory, recipe)), *words)
    said = of_ranks(monkeypatch, ("RANK", "LOCAL_RANK"), "WORLD_SIZE", *words)
    return [code for code, _, _ in said], "".join(errors for _, _, errors in said)


def meeting_place(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(port))


def of_ranks(
    monkeypatch: pytest.MonkeyPatch, numbers: Sequence[str], num: str, module: str, *words: str, num_ranks: int = 2
) -> list[tuple[int, str, str]]:
    """Of each its exit code, output and errors. `numbers`: variables of its number, `num`: of how many there are."""
    monkeypatch.setenv(num, str(num_ranks))
    ranks = []
    for rank in range(num_ranks):
        for name in numbers:
            monkeypatch.setenv(name, str(rank))
        ranks.append(start(module, *words))
    return [finish(rank) for rank in ranks]


def test_a_run_goes_on(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run starts without torchrun and resumes under it, from the newest checkpoint that is not damaged."""
    assert launch.run(compiled(directory, TWO), quiet=True) == 0
    (run,) = (directory / "runs" / "made").iterdir()
    events = read_events(run / "events.jsonl")
    assert isinstance(events[0], RunStarted)
    assert events[0].num_ranks == 2
    assert isinstance(events[-1], RunEnded)
    assert events[-1].status == "finished"
    newest = run / "checkpoints" / "step_00000014"
    data = next(newest.glob("*.distcp"))
    data.write_bytes(data.read_bytes()[:-1] + b"?")
    codes, errors = two_ranks(directory, TWO, monkeypatch, "--resume")
    assert codes == [0, 0], errors
    assert len(list((directory / "runs" / "made").iterdir())) == 1
    said = f"warning: skipped: the checkpoint {newest} is damaged: the checksum of {data.name} does not match"
    assert errors.count(said) == 1
    assert "continuing from" in errors
    resumed = [event for event in read_events(run / "events.jsonl") if isinstance(event, RunStarted)]
    assert [event.first_step for event in resumed] == [0, 7]
    (data, *_) = newest.glob("*.distcp")
    assert data.read_bytes()[-1:] != b"?"


WRONG = merged(TWO, {"model": {"graph": {"act": {"type": "relo"}}}})


def assert_told_once(errors: str, directory: Path) -> None:
    assert errors.count("`relo`") <= 2  # in the message and in the source line below it
    assert errors.count("error[") == 1
    assert not (directory / "runs").exists()


def test_a_mistake_in_the_recipe_is_told_once(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codes, errors = two_ranks(directory, WRONG, monkeypatch)
    assert codes == [1, 1]
    assert "frame #" not in errors  # torch's, of a store that went with rank 0
    assert_told_once(errors, directory)


def test_what_breaks_before_there_is_a_plan_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    meeting_place(monkeypatch)
    said = of_ranks(monkeypatch, ("RANK",), "WORLD_SIZE", "tests.engine.unready")
    assert [code for code, _, _ in said] == [3, 3]
    assert "ZeroDivisionError: planted" in said[0][2]
    assert said[1][1:] == ("", "")


@pytest.mark.long
def test_a_mistake_in_the_recipe_is_told_once_by_torchrun_too(directory: Path) -> None:
    code, errors = torchrun(directory, WRONG)
    assert code != 0
    assert "exitcode  : 1" in errors
    assert_told_once(errors, directory)


@pytest.mark.long
def test_another_number_of_ranks_is_refused(directory: Path) -> None:
    code, errors = torchrun(directory, TWO, num_ranks=3)
    assert code != 0
    assert errors.count("the plan is for 2 ranks (ddp), torchrun started 3") == 1
    assert "--nproc-per-node 2" in errors
    assert "exitcode  : 3" in errors
    assert not (directory / "runs").exists()


@pytest.mark.long
def test_a_loss_that_is_not_finite_is_told_once(directory: Path) -> None:
    changes = {"training": {"optimizer": {"type": "sgd", "lr": 1e30}}}
    code, errors = torchrun(directory, merged(TWO, changes))
    assert code != 0
    assert errors.count("dtrain: the run failed: step ") == errors.count("the loss is ") == 1


ENDLESS = merged(
    TWO, {"training": {"epochs": None, "steps": 1_000_000}, "checkpoint": {"every": "20 steps", "best": None}}
)


def test_a_stopped_rank_is_named_and_not_the_one_that_waits_for_it(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meeting_place(monkeypatch)
    monkeypatch.setenv("DTRAIN_TIMEOUT_S", "3")
    monkeypatch.setenv("WORLD_SIZE", "2")
    path = str(write_recipe(directory, ENDLESS))
    ranks = []
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        ranks.append(start("declarative_train", "run", path, "--quiet"))
    try:
        wait_until(lambda: any(is_saved for _, is_saved in sessions(directory)))
        ranks[1].send_signal(signal.SIGSTOP)
        code, _, errors = finish(ranks[0])
    finally:
        ranks[1].kill()
        finish(ranks[1])
    assert code == 3
    (line,) = [line for line in errors.splitlines() if line.startswith("dtrain: the run failed")]
    assert re.match(r"dtrain: the run failed: rank 1 did not answer; rank 0, step \d+: RuntimeError: ", line)


def sessions(directory: Path) -> list[tuple[int, bool]]:
    """Return of each session of the only run its first step, and whether it has saved a checkpoint."""
    found: list[tuple[int, bool]] = []
    for path in (directory / "runs" / "made").glob("*/events.jsonl"):
        for event in read_events(path):
            if isinstance(event, RunStarted):
                found.append((event.first_step, False))
            elif isinstance(event, CheckpointSaved):
                found[-1] = (found[-1][0], True)
    return found


def wait_until(is_so: Callable[[], bool], limit_s: float = 100) -> None:
    deadline_s = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def rank_below(parent: int, rank: int) -> int:
    """Return the process of a rank that the parent has started."""
    for pid in family(parent):
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if f"RANK={rank}".encode() in environment:
            return pid
    raise AssertionError


def test_a_restart_continues_its_own_run_from_the_newest_checkpoint(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun restarts all ranks, with the store that the killed ones have left."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2"}
    for name, value in {**where, "TORCHELASTIC_USE_AGENT_STORE": "True"}.items():
        monkeypatch.setenv(name, value)
    path = str(write_recipe(directory, ENDLESS))

    def attempt() -> list[Started]:
        ranks = []
        for rank in ("1", "0"):  # a rank may be there before rank 0 is
            monkeypatch.setenv("RANK", rank)
            monkeypatch.setenv("LOCAL_RANK", rank)
            ranks.append(start("declarative_train", "run", path))
        return ranks

    other, first = attempt()
    wait_until(lambda: any(is_saved for _, is_saved in sessions(directory)))
    other.kill()
    assert [finish(rank)[0] for rank in (other, first)] == [-signal.SIGKILL, 3]
    ranks = attempt()
    wait_until(lambda: len(sessions(directory)) == 2)
    for rank in ranks:
        rank.send_signal(signal.SIGTERM)
    said = [finish(rank) for rank in ranks]
    assert [code for code, _, _ in said] == [75, 75], said
    assert len(list((directory / "runs" / "made").iterdir())) == 1
    (begun, _), (again, _) = sessions(directory)
    assert begun == 0
    assert again >= 20
    assert again % 20 == 0


@pytest.mark.long
@pytest.mark.parametrize("store", ["c10d", "static"])
def test_torchrun_restarts_a_run_that_lost_a_rank(directory: Path, store: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    rendezvous = ["--standalone"] if store == "c10d" else ["--master-addr", "127.0.0.1", "--master-port", str(port)]
    command = [sys.executable, "-m", "torch.distributed.run", *rendezvous, "--nproc-per-node", "2", "--max-restarts"]
    command += ["3", "-m", "declarative_train", "run", str(write_recipe(directory, ENDLESS))]
    with subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}) as process:
        try:
            for count in (1, 2, 3):
                wait_until(lambda count=count: len(sessions(directory)) == count and sessions(directory)[-1][1])
                if count < 3:
                    os.kill(rank_below(process.pid, 1), signal.SIGKILL)
            begun = [first for first, _ in sessions(directory)]
            assert begun[0] == 0
            assert 20 <= begun[1] < begun[2]
        finally:
            process.terminate()
            process.wait(timeout=60)


@pytest.mark.parametrize("missing", ["MASTER_ADDR", "MASTER_PORT"])
def test_a_rank_that_does_not_know_where_the_others_are(
    directory: Path, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    del where[missing]
    monkeypatch.delenv(missing, raising=False)
    for name, value in where.items():
        monkeypatch.setenv(name, value)
    code, _, errors = finish(start("declarative_train", "run", str(write_recipe(directory, TWO))))
    assert code == 3
    assert f"RANK and WORLD_SIZE are set, so this is one rank of several, but {missing} is not; help: " in errors
    assert errors.count("\n") == 1


def waits(monkeypatch: pytest.MonkeyPatch, rank: int) -> tuple[int, list[str]]:
    """Start one rank of four that does not wait long; its exit code, and its lines on standard error."""
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "4")
    code, _, errors = finish(start("tests.engine.unready", "0.4", "2"))
    return code, errors.splitlines()


def test_rank_0_reports_which_ranks_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    meeting_place(monkeypatch)
    code, (first, second, *_, last) = waits(monkeypatch, 0)
    assert code == 3
    assert first == "dtrain: waiting for ranks 1 to 3 of 4 (0 s)"
    assert second == "dtrain: waiting for ranks 1 to 3 of 4 (1 s)"
    assert last == "dtrain: the run failed: rank 0: ranks 1 to 3 of 4 did not start within 2 s"


def test_a_rank_reports_that_it_waits_for_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    meeting_place(monkeypatch)
    code, lines = waits(monkeypatch, 1)
    place = f"rank 0 at 127.0.0.1, port {os.environ['MASTER_PORT']}"
    assert code == 3
    assert next(line for line in lines if line.startswith("dtrain:")) == f"dtrain: waiting for {place} (0 s)"
    assert lines[-1] == (
        f"dtrain: the run failed: rank 1: {place}, did not answer within 2 s; help: check that it runs, and that no "
        "firewall blocks it"
    )


def test_a_rank_that_is_stopped_while_it_waits_has_lost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    meeting_place(monkeypatch)
    monkeypatch.setenv("DTRAIN_GRACE_S", "0.5")
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "4")):
        monkeypatch.setenv(name, value)
    rank = start("tests.engine.unready", "0.4", "60")
    while "waiting for" not in rank.errors():
        time.sleep(0.05)
    rank.send_signal(signal.SIGTERM)
    code, _, errors = finish(rank)
    assert code == 143
    assert errors.splitlines()[-1] == (
        "dtrain: stopped since no step finished within 0.5 s (DTRAIN_GRACE_S), before the first step: nothing is lost"
    )


def test_a_port_in_use_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("", 0)) as taken:
        monkeypatch.setenv("MASTER_ADDR", "localhost")
        monkeypatch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        code, (line,) = waits(monkeypatch, 0)
    assert code == 3
    assert re.match(r"dtrain: the run failed: rank 0: cannot listen on port \d+ of .*: address already in use; ", line)


def test_ranks_of_a_step_of_slurm(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have no other variables than Slurm's, and find each other."""
    step = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "127.0.0.1"}
    for name, value in step.items():
        monkeypatch.setenv(name, value)
    words = ("declarative_train", "run", str(write_recipe(directory, TWO)))
    said = of_ranks(monkeypatch, ("SLURM_PROCID", "SLURM_LOCALID"), "SLURM_STEP_NUM_TASKS", *words)
    assert [code for code, _, _ in said] == [0, 0], said
    assert len(list((directory / "runs" / "made").iterdir())) == 1


def test_many_runs_of_one_process_are_not_taken_for_ranks_in_silence(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meeting_place(monkeypatch)
    words = ("declarative_train", "run", str(write_recipe(directory, DIGITS)))
    said = of_ranks(monkeypatch, ("OMPI_COMM_WORLD_RANK",), "OMPI_COMM_WORLD_SIZE", *words, num_ranks=3)
    assert [code for code, _, _ in said] == [3, 3, 3], said
    (line,) = "".join(errors for _, _, errors in said).splitlines()
    assert line == (
        "dtrain: the plan is for 1 rank (single), mpirun started 3; help: `env -u OMPI_COMM_WORLD_RANK dtrain run ...` "
        "for separate runs, or change layout.gpus"
    )
    assert not (directory / "runs").exists()


def test_a_dry_run_of_ranks_trains_nothing(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And as mpirun and srun start them: no LOCAL_RANK, no LOCAL_WORLD_SIZE."""
    meeting_place(monkeypatch)
    words = ("declarative_train", "run", str(write_recipe(directory, TWO)), "--dry-run")
    said = of_ranks(monkeypatch, ("PMI_RANK",), "PMI_SIZE", *words)
    assert [code for code, _, _ in said] == [0, 0], said
    assert said[0][1].startswith("made: ddp on 2")
    assert said[1][1] == ""
    assert not (directory / "runs").exists()


def lines_for_many_nodes(word: str) -> dict[str, str]:
    """Every place that says how to start on several nodes, and the line that it says, up to the recipe."""
    found = {}
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("recipes/*.yaml")):
        text = re.sub(r"\\\n[# ]*", "", path.read_text())
        for number, line in enumerate(re.findall(word, text)):
            found[f"{path.name} {number}"] = line
    return found


def test_every_line_for_many_nodes_is_the_same(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = lines_for_many_nodes(r"dtrain run \S+ --node \S+ --head \S+")
    far = compiled(directory, merged(TWO, {"layout": {"gpus": None, "nodes": 2, "gpus_per_node": 1}}))
    assert launch.run(far) == 3
    lines["dtrain run"] = capsys.readouterr().err.strip().partition("HEAD: ")[2]
    assert {"launching.md 0", "gpt_7b_auto_32xh100.yaml 0"} <= lines.keys()
    assert {re.sub(r"run \S+", "run", line) for line in lines.values()} == {"dtrain run --node $NODE --head $HEAD"}


IPV4, IPV6 = ("10.77.0.1", "10.77.0.2"), ("fd77::1", "fd77::2")


@pytest.fixture
def networks(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """Two network namespaces with a cable between them, and the addresses that are asked for. In both, the name of the
    machine stands for a loopback address, as it does on Debian."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces want root and iproute2")
    names = [f"dtrain{os.getpid()}{side}" for side in "ab"]
    cable = [f"dt{os.getpid() % 10**6}{side}" for side in "ab"]
    lines = [f"netns add {name}" for name in names]
    lines += [f"link add {cable[0]} type veth peer name {cable[1]}"]
    for address, name, end in zip(request.param, names, cable, strict=True):
        room = f"{address}/64 dev {end} nodad" if ":" in address else f"{address}/24 dev {end}"
        lines += [f"link set {end} netns {name}", f"-n {name} addr add {room}"]
        lines += [f"-n {name} link set {end} up", f"-n {name} link set lo up"]
    try:
        for line in lines:
            done = subprocess.run(["ip", *line.split()], capture_output=True, text=True, timeout=20, check=False)
            if done.returncode:
                pytest.skip(f"no network namespaces here: ip {line}: {done.stderr.strip()}")
        yield names[0], names[1]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=20, check=False)


@pytest.mark.parametrize("networks", [IPV6], indirect=True)
def test_the_interface_is_found_on_machines_with_ipv6_alone(networks: tuple[str, str]) -> None:
    code = f"from declarative_train.run.network import interface_to; print(interface_to({IPV6[0]!r}))"
    found = [
        subprocess.run(
            ["ip", "netns", "exec", name, sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout.strip()
        for name in networks
    ]
    assert found == [f"dt{os.getpid() % 10**6}{side}" for side in "ab"]


@pytest.mark.parametrize(("networks", "head"), [(IPV4, IPV4[0]), (IPV6, IPV6[0])], indirect=["networks"])
@pytest.mark.long
def test_the_documented_line_of_torchrun_on_two_nodes(directory: Path, networks: tuple[str, str], head: str) -> None:
    path = write_recipe(directory, merged(DIGITS, {"parallelism": "ddp", "layout": {"nodes": 2, "gpus_per_node": 1}}))
    line = lines_for_many_nodes(r"torchrun --nnodes.* run \S+")["launching.md 0"]
    line = line.replace("torchrun", f"{sys.executable} -m torch.distributed.run", 1).replace("RECIPE", str(path))
    line = line.replace("--nproc-per-node 8", "--nproc-per-node 1")
    environment = {name: value for name, value in os.environ.items() if name != "GLOO_SOCKET_IFNAME"}
    nodes = [
        subprocess.Popen(
            ["ip", "netns", "exec", name, "sh", "-c", line],
            env=environment | {"NODE": str(number), "HEAD": head, "OMP_NUM_THREADS": "1", "DTRAIN_TIMEOUT_S": "40"},
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for number, name in enumerate(networks)
    ]
    try:
        said = [node.communicate(timeout=110)[1] for node in nodes]
    finally:
        for node in nodes:
            if node.poll() is None:
                os.killpg(node.pid, signal.SIGKILL)
                node.communicate()
    assert [node.returncode for node in nodes] == [0, 0], said
    (run,) = (directory / "runs" / "made").iterdir()
    started, *_, ended = read_events(run / "events.jsonl")
    assert isinstance(started, RunStarted)
    assert (started.num_ranks, started.mode) == (2, "ddp")
    assert isinstance(ended, RunEnded)
    assert ended.status == "finished"


def test_a_disk_that_the_machines_do_not_share_is_told_before_the_first_step(directory: Path) -> None:
    """And not at the first save. The folder of a run stands in for one that another machine made on its own disk."""
    plan = compiled(directory, TWO)
    there, hosts = directory / "runs" / "there", ("node1", "node2")
    there.mkdir(parents=True)
    check_disk(RankJob(plan, "cpu", RunPlace(there, None), None, lambda _: ()), "node2", hosts, 0)
    elsewhere = RankJob(plan, "cpu", RunPlace(directory / "runs" / "gone", None), None, lambda _: ())
    check_disk(elsewhere, "node1", hosts, 0)
    with pytest.raises(
        RunFailure, match=r"^node2 does not see .*gone, which rank 0 created on node1, .* help: set logging"
    ):
        check_disk(elsewhere, "node2", hosts, 0)
    remote = RunPlace(directory / "runs" / "gone", None, elsewhere="s3://bucket/made/1/checkpoints")
    check_disk(replace(elsewhere, place=remote), "node2", hosts, 0)
    check_disk(replace(elsewhere, plan=replace(plan, checkpoint=None)), "node2", hosts, 0)


@pytest.mark.long
def test_the_documented_line_of_mpirun(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("mpirun") is None:
        assert not os.environ.get("DTRAIN_REQUIRE_SLURM")
        pytest.skip("wants the package openmpi-bin")
    meeting_place(monkeypatch)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    line = find_line(LAUNCHING, "mpirun -n").replace("-n 16", "-n 2 --oversubscribe --allow-run-as-root")
    line = line.replace("$HEAD", "127.0.0.1").replace("=29500", f"={os.environ['MASTER_PORT']}")
    line = line.replace(
        "dtrain run RECIPE", f"{sys.executable} -m declarative_train run {write_recipe(directory, TWO)}"
    )
    done = subprocess.run(shlex.split(line), capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    (log,) = (directory / "runs" / "made").glob("*/events.jsonl")
    begun, *_, ended = read_events(log)
    assert isinstance(begun, RunStarted)
    assert isinstance(ended, RunEnded)
    assert (begun.num_ranks, ended.status) == (2, "finished")
