"""Launchers such as torchrun, Slurm and MPI. They start this process as one rank of many, or as the only process on one
of several nodes (machines). This module recognises them by the environment variables that they set."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

FIRST_PORT, NUM_PORTS = 20000, 10000  # below the ephemeral ports of Linux


@dataclass(frozen=True, slots=True)
class Launcher:
    """Program that starts ranks, such as torchrun or srun. `rank`, `world`, `local_rank`: names of the environment
    variables that contain the rank, the number of ranks, and the rank's index on its machine."""

    name: str
    rank: str
    world: str
    local_rank: str


OF_TORCH = Launcher("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK")
# not SLURM_NTASKS, which is also set in a batch script, which is one process
SLURM = Launcher("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
OPEN_MPI = Launcher("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")
MPICH = Launcher("mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID")
LAUNCHERS = (OF_TORCH, SLURM, OPEN_MPI, MPICH)


def is_one_of_many(environment: MutableMapping[str, str] = os.environ) -> bool:
    """Return whether a launcher started this process as one rank of several. If so, set RANK and WORLD_SIZE, which
    torch reads. For Slurm also set MASTER_ADDR and MASTER_PORT, if they have no value."""
    if OF_TORCH.rank in environment and OF_TORCH.world in environment:
        return True
    launcher = next((each for each in LAUNCHERS[1:] if _is_of(each, environment)), None)
    if launcher is None:
        return False
    environment[OF_TORCH.rank] = environment[launcher.rank]
    environment[OF_TORCH.world] = environment[launcher.world]
    if launcher is SLURM and (host := first_host(environment)):
        environment.setdefault("MASTER_ADDR", host)
        environment.setdefault("MASTER_PORT", str(port_of_step(environment)))
    return True


def find_launcher(environment: Mapping[str, str] = os.environ) -> Launcher:
    """Return the launcher that started this rank, or torchrun if none is recognised. torchrun within a Slurm step
    counts as torchrun."""
    if OF_TORCH.local_rank in environment:
        return OF_TORCH
    return next((each for each in LAUNCHERS[1:] if _is_of(each, environment)), OF_TORCH)


def local_rank(environment: Mapping[str, str] = os.environ) -> int | None:
    """Return this rank's index among the ranks of its machine, or None if the launcher does not provide it."""
    numbers = (environment.get(each.local_rank, "") for each in LAUNCHERS)
    return next((int(number) for number in numbers if number.isdigit()), None)


def first_host(environment: Mapping[str, str]) -> str:
    """Return the name of the first node of a Slurm step, on which rank 0 runs. It is gpu07 for `gpu[07-09,12],cpu1`."""
    hosts = environment.get("SLURM_STEP_NODELIST", "")
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", hosts)
    assert first is not None
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first[0])


def port_of_step(environment: Mapping[str, str]) -> int:
    """Return a port number for a Slurm step (the processes of one `srun`). It is computed from environment variables,
    so that it is the same on every rank and usually differs between steps."""
    job, step = (int(environment.get(name, "0")) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    return FIRST_PORT + (job * 31 + step) % NUM_PORTS


def _is_of(launcher: Launcher, environment: Mapping[str, str]) -> bool:
    rank, world = environment.get(launcher.rank, ""), environment.get(launcher.world, "")
    return rank.isdigit() and world.isdigit() and int(world) > 1


@dataclass(frozen=True, slots=True)
class Seat:
    """Place of this node (machine) in a run on several nodes. `node`: its index. `head`, `port`: address of node 0, the
    head node, at which all nodes meet. `key`: an option or environment variable that gives this address, for
    messages."""

    node: int
    head: str
    port: int
    key: str = "--head"

    @property
    def address(self) -> str:
        return f"{f'[{self.head}]' if ':' in self.head else self.head}:{self.port}"


@dataclass(frozen=True, slots=True)
class NodeLauncher:
    """Launcher that starts one process on each node. The attributes, except `name`, are names of environment variables.

    `node`       index of this node
    `num_nodes`  number of nodes; "" if the launcher has no such variable
    `heads`      address of node 0, the head node; the first that has a value is read
    `port`       port of node 0
    `only`       (variable, wanted): the launcher is recognised only if both variables have the same value. `wanted` may
                 also be the value itself, such as `1`. ("", ""): no condition
    """

    name: str
    node: str
    num_nodes: str = ""
    heads: tuple[str, ...] = ("MASTER_ADDR",)
    port: str = "MASTER_PORT"
    only: tuple[str, str] = ("", "")


NODE_LAUNCHERS = (
    NodeLauncher("Kubeflow TrainJob", "PET_NODE_RANK", "PET_NNODES", ("PET_MASTER_ADDR",), "PET_MASTER_PORT"),
    NodeLauncher("SkyPilot", "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES", ("MASTER_ADDR", "SKYPILOT_NODE_IPS")),
    NodeLauncher(
        "Slurm",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_NODES",
        ("MASTER_ADDR", "SLURM_STEP_NODELIST"),
        only=("SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES"),
    ),
    NodeLauncher("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", only=("OMPI_COMM_WORLD_LOCAL_SIZE", "1")),
    NodeLauncher("Kubernetes", "JOB_COMPLETION_INDEX"),
)
HEAD_PORT = 29500


class SeatError(ValueError):
    """Error: the index of this node or the address of the head node is missing or wrong."""


def find_seat(
    node: int | None = None, head: str | None = None, environment: Mapping[str, str] = os.environ
) -> Seat | None:
    """Return the index of this node (machine) in a run on several nodes, and the address of node 0 (the head node).
    Return None on a single node, and if a launcher started each rank. `node`, `head`: the options `--node` and
    `--head`. Without them, the environment variables of a launcher that starts one process on each node are read.
    Raises SeatError."""
    if node is not None or head is not None:
        head = head or environment.get("MASTER_ADDR")
        if node is None or not head:
            raise SeatError("--node and --head belong together: the number of this node, and the address of node 0")
        if node < 0:
            raise SeatError(f"--node is {node}; nodes are numbered from 0")
        return Seat(node, *_split_address(head, environment.get("MASTER_PORT", "")))
    if OF_TORCH.rank in environment and OF_TORCH.world in environment:
        return None
    for each in NODE_LAUNCHERS:
        number, count = environment.get(each.node, ""), environment.get(each.num_nodes, "many")
        found = next((environment[name] for name in each.heads if environment.get(name)), None)
        variable, wanted = each.only
        is_node = not variable or environment.get(variable) == environment.get(wanted, wanted)
        if not (number.isdigit() and is_node and found and count != "1"):
            continue
        if each.name == "Slurm":
            found = environment.get("MASTER_ADDR") or first_host(environment)
            port = environment.get(each.port) or str(port_of_step(environment))
        else:
            port = environment.get(each.port, "")
        return Seat(int(number), *_split_address(found.split()[0], port), each.port)
    return None


def _split_address(text: str, port: str) -> tuple[str, int]:
    """Return host and port of an address such as `host`, `host:29500`, `[fd77::1]:29500` or `fd77::1`. `port`: port for
    an address without one; "": `HEAD_PORT`. Raises SeatError."""
    found = re.fullmatch(r"\[([^\]]+)\](?::(\w+))?|([^:]+)(?::(\w+))?|([0-9a-fA-F:.]+)", text)
    if found is None:
        raise SeatError(f"`{text}` is not the address of a node: HOST or HOST:PORT")
    port = found[2] or found[4] or port or str(HEAD_PORT)
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise SeatError(f"`{port}` is not the number of a port")
    return found[1] or found[3] or found[5], int(port)
