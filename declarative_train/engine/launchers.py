"""Who started this process as one rank of many, by the variables that it set."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

FIRST_PORT, NUM_PORTS = 20000, 10000  # below those that Linux gives out by itself


@dataclass(frozen=True, slots=True)
class Launcher:
    """Its name, and the variables of a rank's number, of how many there are, and of its number on its machine."""

    name: str
    rank: str
    world: str
    local_rank: str


OF_TORCH = Launcher("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK")
# SLURM_NTASKS is set in a batch script too, which is one process: what counts are the tasks of the step
SLURM = Launcher("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
OPEN_MPI = Launcher("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")
MPICH = Launcher("mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID")
LAUNCHERS = (OF_TORCH, SLURM, OPEN_MPI, MPICH)


def is_one_of_many(environment: MutableMapping[str, str] = os.environ) -> bool:
    """Whether this process is a rank that somebody else started. Then RANK and WORLD_SIZE stand in the environment
    afterwards, as torch reads them, and, of a rank that Slurm started, where they meet; what is set already stays."""
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


def started_by(environment: Mapping[str, str] = os.environ) -> Launcher:
    """Of a rank. torchrun sets its own beside those of a step of Slurm in which it runs."""
    if OF_TORCH.local_rank in environment:
        return OF_TORCH
    return next((each for each in LAUNCHERS[1:] if _is_of(each, environment)), OF_TORCH)


def local_rank(environment: Mapping[str, str] = os.environ) -> int | None:
    """This rank's number on its machine, None where the launcher does not tell."""
    told = (environment.get(each.local_rank, "") for each in LAUNCHERS)
    return next((int(number) for number in told if number.isdigit()), None)


def first_host(environment: Mapping[str, str]) -> str:
    """The machine of rank 0: Slurm deals out a step from its first node on. `gpu[07-09,12],cpu1` begins with gpu07."""
    hosts = environment.get("SLURM_STEP_NODELIST", "")
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", hosts)
    assert first is not None
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first[0])


def port_of_step(environment: Mapping[str, str]) -> int:
    """The same on every rank of a step, and another for another step."""
    job, step = (int(environment.get(name, "0")) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    return FIRST_PORT + (job * 31 + step) % NUM_PORTS


def _is_of(launcher: Launcher, environment: Mapping[str, str]) -> bool:
    rank, world = environment.get(launcher.rank, ""), environment.get(launcher.world, "")
    return rank.isdigit() and world.isdigit() and int(world) > 1
