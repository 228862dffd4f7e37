"""Which variables make a process one rank of many, and where the ranks of a step of Slurm meet."""

from __future__ import annotations

import pytest

from declarative_train.engine.launchers import (
    FIRST_PORT,
    MPICH,
    NODE_LAUNCHERS,
    NUM_PORTS,
    OF_TORCH,
    OPEN_MPI,
    SLURM,
    Launcher,
    Seat,
    SeatError,
    find_launcher,
    find_seat,
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


OF_NODES = {
    "Kubeflow TrainJob": {
        "PET_NODE_RANK": "1",
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "8",
        "PET_MASTER_ADDR": "job-node-0-0.job",
        "PET_MASTER_PORT": "29400",
    },
    "SkyPilot": {
        "SKYPILOT_NODE_RANK": "1",
        "SKYPILOT_NUM_NODES": "2",
        "SKYPILOT_NODE_IPS": "10.0.0.4\n10.0.0.5",
    },
    "Slurm": {
        "SLURM_PROCID": "1",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NODELIST": "gpu[07-08]",
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
    },
    "Open MPI": {
        "OMPI_COMM_WORLD_RANK": "1",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
        "MASTER_ADDR": "head",
        "MASTER_PORT": "4000",
    },
    "Kubernetes": {"JOB_COMPLETION_INDEX": "1", "MASTER_ADDR": "job-0.job"},
}
HEADS = {
    "Kubeflow TrainJob": ("job-node-0-0.job", 29400),
    "SkyPilot": ("10.0.0.4", 29500),
    "Slurm": ("gpu07", port_of_step({"SLURM_JOB_ID": "7"})),
    "Open MPI": ("head", 4000),
    "Kubernetes": ("job-0.job", 29500),
}


@pytest.mark.parametrize("name", [each.name for each in NODE_LAUNCHERS])
def test_a_node_of_a_launcher(name: str) -> None:
    seat = find_seat(environment=OF_NODES[name])
    assert seat is not None
    assert (seat.node, seat.head, seat.port) == (1, *HEADS[name])
    (count,) = (each.num_nodes for each in NODE_LAUNCHERS if each.name == name)
    if count:
        assert find_seat(environment=OF_NODES[name] | {count: "1"}) is None, "one node needs no head"


def test_ranks_that_a_launcher_started_are_no_nodes() -> None:
    assert find_seat(environment=STEP | {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "gpu[07-08]"}) is None
    assert find_seat(environment=OF_NODES["Open MPI"] | {"OMPI_COMM_WORLD_LOCAL_SIZE": "8"}) is None
    assert find_seat(environment={**OF_NODES["Kubeflow TrainJob"], "RANK": "9", "WORLD_SIZE": "16"}) is None
    assert find_seat(environment={"JOB_COMPLETION_INDEX": "3"}) is None, "an array of runs"
    assert find_seat(environment={}) is None


@pytest.mark.parametrize(
    ("text", "head", "port"),
    [
        ("gpu07", "gpu07", 29500),
        ("gpu07.cluster:4000", "gpu07.cluster", 4000),
        ("10.0.0.4:4000", "10.0.0.4", 4000),
        ("[fd77::1]:4000", "fd77::1", 4000),
        ("fd77::1", "fd77::1", 29500),
    ],
)
def test_the_address_of_the_head(text: str, head: str, port: int) -> None:
    seat = find_seat(3, text, {"SLURM_PROCID": "9"})
    assert seat == Seat(3, head, port)
    assert seat.address == (f"[{head}]:{port}" if ":" in head else f"{head}:{port}")


@pytest.mark.parametrize(
    ("node", "head"), [(1, None), (None, "gpu07"), (0, "gpu07:port"), (0, "gpu07:99999"), (-1, "a")]
)
def test_a_place_that_is_none(node: int | None, head: str | None) -> None:
    with pytest.raises(SeatError):
        find_seat(node, head, {})
