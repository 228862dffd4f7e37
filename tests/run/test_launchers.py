"""Which variables make a process one rank of many, and where the ranks of a step of Slurm meet."""

from __future__ import annotations

import pytest

from declarative_train.engine.launchers import (
    FIRST_PORT,
    MPICH,
    NUM_PORTS,
    OF_TORCH,
    OPEN_MPI,
    SLURM,
    Launcher,
    find_launcher,
    first_host,
    is_one_of_many,
    local_rank,
    port_of_step,
)

BATCH = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "16", "SLURM_JOB_ID": "7"}
STEP = BATCH | {"SLURM_PROCID": "9", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "16", "SLURM_STEP_ID": "2"}


def test_a_process_of_its_own() -> None:
    assert not is_one_of_many({})
    assert not is_one_of_many(dict(BATCH)), "a batch script is one process"
    assert not is_one_of_many(STEP | {"SLURM_STEP_NUM_TASKS": "1"}), "so is a shell that srun started"
    assert not is_one_of_many({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"})
    assert not is_one_of_many({name: value for name, value in STEP.items() if name != "SLURM_PROCID"})


@pytest.mark.parametrize("launcher", [SLURM, OPEN_MPI, MPICH])
def test_a_rank_of_another_launcher(launcher: Launcher) -> None:
    environment = {launcher.rank: "3", launcher.world: "8", launcher.local_rank: "1"}
    assert is_one_of_many(environment)
    assert (environment["RANK"], environment["WORLD_SIZE"]) == ("3", "8")
    assert find_launcher(environment) is launcher
    assert local_rank(environment) == 1


def test_torchrun_in_a_step_of_slurm_counts() -> None:
    of_torch = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "5", "MASTER_ADDR": "head", "MASTER_PORT": "29500"}
    environment = STEP | of_torch
    assert is_one_of_many(environment)
    assert environment == STEP | of_torch
    assert find_launcher(environment) is OF_TORCH
    assert local_rank(environment) == 5


def test_where_a_step_of_slurm_meets() -> None:
    environment = STEP | {"SLURM_STEP_NODELIST": "gpu[07-09,12],cpu1"}
    assert is_one_of_many(environment)
    assert environment["MASTER_ADDR"] == "gpu07"
    assert FIRST_PORT <= int(environment["MASTER_PORT"]) < FIRST_PORT + NUM_PORTS
    chosen = STEP | {"SLURM_STEP_NODELIST": "gpu07", "MASTER_ADDR": "ib07", "MASTER_PORT": "4000"}
    assert is_one_of_many(chosen)
    assert (chosen["MASTER_ADDR"], chosen["MASTER_PORT"]) == ("ib07", "4000")
    steps = {port_of_step({"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(n)}) for job in (7, 8) for n in range(9)}
    assert len(steps) == 18


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("node1", "node1"),
        ("node1,node2", "node1"),
        ("gpu[001-004]", "gpu001"),
        ("gpu[3,7-9],gpu12", "gpu3"),
        ("rack[2-3]n[01-02].cluster", "rack2n01.cluster"),
        ("", ""),
    ],
)
def test_first_of_a_list_of_hosts(hosts: str, first: str) -> None:
    assert first_host({"SLURM_STEP_NODELIST": hosts}) == first
