"""Slurm for tests: a controller and its nodes, on this machine or on machines that are network namespaces.

with cluster(folder) as run:                    # one node, this machine
with cluster(folder, made) as run:              # the first machine is the controller, the others are nodes
    print(run("sinfo"))
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.machines import Machine

LIMIT_S = 200
LEAVING_S = 40
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel")
CONFIGURATION = """
ClusterName=test
SlurmctldHost={controller}
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
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
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
JobRequeue=1
SchedulerParameters=sched_interval=2,bf_interval=2
GresTypes=gpu
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
NODE = "NodeName={name} NodeHostname={host} NodeAddr={address} CPUs=4 RealMemory=1000 Gres=gpu:2 State=UNKNOWN"
Run = Callable[..., str]


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


def prepare(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Set the environment so that this process finds the commands and the configuration of Slurm. Skip the test if
    Slurm is not installed."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin"
    missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if missing or os.geteuid() != 0:
        assert not os.environ.get("DTRAIN_REQUIRE_SLURM"), f"not root, or not installed: {missing}"
        pytest.skip("wants root, and the packages slurm-wlm and munge")
    monkeypatch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    monkeypatch.setenv("PATH", path)


@contextmanager
def cluster(folder: Path, made: Sequence[Machine] = ()) -> Iterator[Run]:
    """Start a cluster. Yield a function that runs a command of Slurm on the machine of the controller, and returns its
    output."""
    folder.mkdir()
    (folder / "state").mkdir()
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o600)
    if made:
        controller = f"{made[0].name}({made[0].address})"
        nodes = [NODE.format(name=each.name, host=each.name, address=each.address) for each in made[1:]]
    else:
        controller = "localhost(127.0.0.1)"
        nodes = [NODE.format(name="localhost", host=socket.gethostname(), address="127.0.0.1")]
    text = CONFIGURATION.format(folder=folder, ports=free_ports(2), controller=controller, nodes="\n".join(nodes))
    (folder / "slurm.conf").write_text(text)
    (folder / "gres.conf").write_text("Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n")  # two devices
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nConstrainCores=no\n")
    files = [f"--{kind}-file={folder / f'munge.{kind}'}" for kind in ("key", "log", "pid", "seed")]
    commands = {
        "munged": ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *files],
        "slurmctld": _on(made[:1], "slurmctld", "-D"),
    }
    for each in made[1:]:
        commands[each.name] = each.command("slurmd", "-D", "-N", each.name)
    if not made:
        commands["slurmd"] = ["slurmd", "-D", "-N", "localhost"]

    def run(*words: str) -> str:
        done = subprocess.run(_on(made[:1], *words), capture_output=True, text=True, timeout=60, check=False)
        return done.stdout + done.stderr

    processes: list[subprocess.Popen[bytes]] = []
    try:
        for name, command in commands.items():
            with (folder / f"{name}.out").open("wb") as out:
                processes.append(subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True))
            wait_until((folder / "munge.socket").exists, lambda: (folder / "munged.out").read_text())
        wait_until(
            lambda: run("sinfo", "--noheader", "--Node", "--format=%t").split() == ["idle"] * max(1, len(made) - 1),
            lambda: run("sinfo") + "".join(path.read_text() for path in folder.glob("*.out")),
        )
        yield run
    finally:
        run("scancel", "--user=root")
        # a job that is still there when the controller ends tries to reach it for minutes
        deadline_s = time.monotonic() + LEAVING_S
        while run("squeue", "--noheader").strip() and time.monotonic() < deadline_s:
            time.sleep(0.2)
        for process in reversed(processes):
            process.terminate()
            process.wait(timeout=60)


def _on(made: Sequence[Machine], *words: str) -> list[str]:
    return made[0].command(*words) if made else [*words]
