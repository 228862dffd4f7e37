"""Launchers (torchrun, srun, mpirun) that start this process as one rank of many, recognised by environment
variables."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

FIRST_PORT, NUM_PORTS = 20000, 10000  # below the ephemeral ports of Linux


@dataclass(frozen=True, slots=True)
class Launcher:
    """Launcher and its environment variables for the rank, the number of ranks, and the rank on the machine."""

    name: str
    rank: str
    world: str
    local_rank: str


OF_TORCH = Launcher("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK")
# SLURM_NTASKS is also set in a batch script, which is one process: the tasks of the step count
SLURM = Launcher("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
OPEN_MPI = Launcher("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")
MPICH = Launcher("mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID")
LAUNCHERS = (OF_TORCH, SLURM, OPEN_MPI, MPICH)


def is_one_of_many(environment: MutableMapping[str, str] = os.environ) -> bool:
    """Return whether a launcher started this process as a rank. If so, set RANK and WORLD_SIZE, which torch reads, and
    for Slurm the address where ranks meet; variables that are already set are kept."""
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
    """Return the launcher of this rank. torchrun within a Slurm step counts as torchrun."""
    if OF_TORCH.local_rank in environment:
        return OF_TORCH
    return next((each for each in LAUNCHERS[1:] if _is_of(each, environment)), OF_TORCH)


def local_rank(environment: Mapping[str, str] = os.environ) -> int | None:
    """Return this rank's number on its machine, or None if the launcher does not provide it."""
    numbers = (environment.get(each.local_rank, "") for each in LAUNCHERS)
    return next((int(number) for number in numbers if number.isdigit()), None)


def first_host(environment: Mapping[str, str]) -> str:
    """Return the machine of rank 0 of a Slurm step, its first node: `gpu[07-09,12],cpu1` gives gpu07."""
    hosts = environment.get("SLURM_STEP_NODELIST", "")
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", hosts)
    assert first is not None
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first[0])


def port_of_step(environment: Mapping[str, str]) -> int:
    """Return a port that is the same on every rank of a Slurm step, and differs between steps."""
    job, step = (int(environment.get(name, "0")) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    return FIRST_PORT + (job * 31 + step) % NUM_PORTS


def _is_of(launcher: Launcher, environment: Mapping[str, str]) -> bool:
    rank, world = environment.get(launcher.rank, ""), environment.get(launcher.world, "")
    return rank.isdigit() and world.isdigit() and int(world) > 1
