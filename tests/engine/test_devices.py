"""Which device each rank gets, for every number of GPUs that a machine may show; no GPU is needed to ask."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from declarative_train.core import machine
from declarative_train.data import shared_sets
from declarative_train.engine import devices
from declarative_train.engine.devices import (
    VisibleDevices,
    assign_devices,
    choose_device,
    num_gpus_wanted,
    threads_per_rank,
)
from declarative_train.engine.failures import RunFailure
from declarative_train.plan.layout import LayoutPlan
from declarative_train.run import processes, rank
from declarative_train.run.event import RunEnded
from tests.engine.made_recipes import DIGITS, write_data
from tests.engine.plans import layout
from tests.engine.runs import go


def made(mode: str = "ddp", num_ranks: int = 2, *, nodes: int = 1, device: str = "auto") -> LayoutPlan:
    per_node = num_ranks // nodes
    found = layout(mode, num_ranks)
    return replace(found, device=device, num_nodes=nodes, gpus_per_node=per_node, rank_devices=tuple(range(per_node)))  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _nothing_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize("num_visible", [2, 8])
@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_enough_gpus(num_visible: int, device: str) -> None:
    assert choose_device(made(device=device), num_visible).kind == "cuda"


def test_no_gpu_is_the_cpu_with_a_notice() -> None:
    choice = choose_device(made(), 0)
    assert (choice.kind, choice.notice) == ("cpu", "no GPU here: 2 ranks on CPU")
    assert choose_device(made("single", 1), 0).notice == "no GPU here: one process on CPU"


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_some_gpus_but_too_few_fail_with_what_to_write(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = "the layout is for 2 GPUs, and 1 GPU is visible here; help: --set layout.gpus=1, or "
    with pytest.raises(RunFailure) as found:
        choose_device(made(device=device), 1)
    assert str(found.value) == f"{words}--set layout.device=cpu for 2 ranks on CPU"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with pytest.raises(RunFailure, match=r"visible here \(CUDA_VISIBLE_DEVICES=3\); help"):
        choose_device(made(device=device), 1)


def test_a_gpu_by_number_that_is_not_there() -> None:
    far = replace(made("single", 1), devices=(5,))
    assert num_gpus_wanted(far) == 6
    with pytest.raises(RunFailure, match=r"names GPU 5, and 4 GPUs are visible here; help: number them from 0 to 3"):
        choose_device(far, 4)


def test_cpu_is_cpu_whatever_is_there() -> None:
    assert choose_device(made(device="cpu"), 1).kind == "cpu"
    assert (
        assign_devices(made(device="cpu"), [VisibleDevices("a", 1, ("x",)), VisibleDevices("a", 0, ())]).kind == "cpu"
    )


def seats(
    *gpus: tuple[str, ...], hosts: str = "aaaa", local: tuple[int | None, ...] = (0, 1, 2, 3)
) -> list[VisibleDevices]:
    return [VisibleDevices(host, number, own) for host, number, own in zip(hosts, local, gpus, strict=False)]


def test_ranks_that_see_all_gpus_take_those_of_the_plan() -> None:
    assert assign_devices(made(), seats(("x", "y"), ("x", "y"))).indices == (0, 1)


def test_ranks_that_see_one_gpu_each_have_it_as_number_0() -> None:
    assert assign_devices(made(), seats(("x",), ("y",))).indices == (0, 0)
    far = seats(("x",), ("y",), ("x",), ("y",), hosts="aabb", local=(0, 1, 0, 1))
    assert assign_devices(made(num_ranks=4, nodes=2), far).indices == (0, 0, 0, 0)


def test_one_gpu_for_two_ranks_is_too_few() -> None:
    with pytest.raises(RunFailure, match=r"for 2 GPUs, and 1 GPU is visible on a; help: --set layout.gpus=1"):
        assign_devices(made(), seats(("x",), ("x",)))


def test_the_machine_with_the_fewest_is_named() -> None:
    far = seats(("x", "y"), ("x", "y"), (), (), hosts="aabb", local=(0, 1, 0, 1))
    with pytest.raises(RunFailure, match=r"for 2 GPUs of each machine, and no GPU is visible on b; help: .*doctor"):
        assign_devices(made(num_ranks=4, nodes=2), far)


def test_no_gpu_on_any_machine_is_the_cpu() -> None:
    assert assign_devices(made(), seats((), ())).notice == "no GPU here: 2 ranks on CPU"


def test_a_rank_that_stands_elsewhere_than_in_the_plan() -> None:
    cyclic = seats(("x", "y"), ("x", "y"), ("x", "y"), ("x", "y"), hosts="abab", local=(0, 0, 1, 1))
    with pytest.raises(RunFailure, match=r"rank 1 is number 0 of its machine \(b\), but number 1 in the plan; help: "):
        assign_devices(made(num_ranks=4, nodes=2), cyclic)


def test_a_launcher_that_gives_no_local_rank_is_believed() -> None:
    assert assign_devices(made(), seats(("x", "y"), ("x", "y"), local=(None, None))).indices == (0, 1)


def test_cores_where_the_system_does_not_tell_those_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(machine.os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 6)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert machine.num_cores() == 6
    assert threads_per_rank(2) == 3


def test_the_c_library_is_asked_on_linux_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices.sys, "platform", "darwin")
    monkeypatch.setattr(devices.ctypes, "CDLL", None)
    devices.keep_freed_memory()


def refuses() -> bool:
    raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")


@pytest.mark.parametrize(
    ("kind", "platform", "answer", "method"),
    [
        ("cuda", "linux", lambda: None, "fork"),
        ("cuda", "linux", refuses, "spawn"),
        ("cpu", "linux", refuses, "fork"),
        ("cpu", "darwin", lambda: None, "spawn"),
    ],
)
def test_ranks_are_forked_where_that_is_safe(
    kind: str, platform: str, answer: Any, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes.sys, "platform", platform)
    monkeypatch.setattr(torch.cuda, "init", answer)
    assert processes.start_method(kind) == method


def test_no_child_is_forked_that_could_not_differentiate(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a run on a GPU in this process, or a `torch.compile` on a CUDA build: only one that has threads."""

    def refused() -> None:
        raise RuntimeError("Unable to handle autograd's threading in combination with fork-based multiprocessing.")

    assert processes.start_method("cpu") == "fork"
    monkeypatch.setattr(processes, "start_autograd", refused)
    assert processes.start_method("cpu") == "spawn"


@pytest.mark.long
def test_ranks_that_are_spawned_map_the_data_that_are_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They cannot read them: the files are gone when they start."""
    write_data(tmp_path)
    offer, made = shared_sets.offer, []

    def and_gone(spec: Any) -> Any:
        made.append(offer(spec))
        (tmp_path / "data.npz").unlink()
        return made[-1]

    monkeypatch.setattr(shared_sets, "offer", and_gone)
    monkeypatch.setattr(processes, "start_method", lambda kind: "spawn")
    done = go(tmp_path, DIGITS, {"parallelism": "ddp", "layout": {"gpus": 2}})
    assert done.code == 0
    (one,) = made
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(one.file)
    assert done.of(RunEnded)[-1].status == "finished"


@pytest.mark.parametrize("wanted", [True, False])
def test_deterministic_is_set_before_anything_is_computed(
    tmp_path: Path, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_data(tmp_path)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", wanted)
    build, seen = rank.Engine, []

    def noted(*args: Any, **more: Any) -> Any:
        cudnn = torch.backends.cudnn
        seen.append((torch.are_deterministic_algorithms_enabled(), cudnn.deterministic, not cudnn.benchmark))
        seen.append("CUBLAS_WORKSPACE_CONFIG" in os.environ)
        return build(*args, **more)

    monkeypatch.setattr(rank, "Engine", noted)
    assert go(tmp_path, DIGITS, {"training": {"deterministic": wanted}}).code == 0
    assert seen == [(wanted, wanted, wanted), wanted]
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_rank_on_a_gpu_is_bound_to_it_before_it_meets_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)

    def set_device(device: torch.device) -> None:  # which makes the allocator of each device, with its settings
        calls.append((str(device), os.environ.get("PYTORCH_ALLOC_CONF")))

    monkeypatch.setattr(torch.cuda, "set_device", set_device)
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *words, **more: calls.append((words, more)))
    monkeypatch.setenv("DTRAIN_TIMEOUT_S", "90")
    monkeypatch.setenv(processes.QUIET_P2P, "")
    monkeypatch.delenv(processes.QUIET_P2P)
    store = torch.distributed.HashStore()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    processes.join_process_group(torch.device("cuda", 1), store)
    assert os.environ[processes.QUIET_P2P] == "false"
    bound, (words, more) = calls
    assert (bound, words) == (("cuda:1", "expandable_segments:True"), ("cpu:gloo,cuda:nccl",))
    meeting = {"store": store, "rank": 1, "world_size": 2}
    assert more == {"timeout": timedelta(seconds=90), "device_id": torch.device("cuda", 1), **meeting}


def test_a_rank_that_somebody_else_started_asks_cuda_when_the_allocator_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    seen = []
    monkeypatch.setattr(devices, "num_gpus", lambda: 1)
    monkeypatch.setattr(devices, "_name_of_gpu", lambda index: str(seen.append(os.environ.get("PYTORCH_ALLOC_CONF"))))
    devices.find_visible_devices()
    assert seen == ["expandable_segments:True"]


def test_what_linux_alone_has_is_asked_in_one_place() -> None:
    package = Path(machine.__file__).parent.parent
    found = {path.name for path in package.rglob("*.py") if "sched_getaffinity" in path.read_text("utf-8")}
    assert found == {"machine.py"}
