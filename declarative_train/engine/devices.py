"""Choice of the devices of the ranks, made once for all ranks. The user gets a notice if they run on the CPU because
there is no GPU."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from declarative_train.core.amounts import format_count
from declarative_train.core.machine import num_cores
from declarative_train.engine.failures import RunFailure
from declarative_train.engine.launchers import local_rank

if TYPE_CHECKING:
    import torch

    from declarative_train.plan.layout import LayoutPlan, RankPlan

# ask the driver's library, not CUDA itself: a parent that has initialised CUDA cannot fork ranks that use it
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

TRIAL_S = 2.0  # time for a child to start a thread pool
# <malloc.h>
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGEST_KEPT = 32 << 20  # the maximum of M_MMAP_THRESHOLD in glibc; larger pieces are mapped and unmapped as before
_NEVER = -1


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """Devices on which the ranks run. `kind`: kind of device. `notice`: message for the user if these are not the
    devices of the layout, else None. `indices`: for each rank, the index of its GPU among the GPUs that it sees; empty:
    each rank uses the index in the plan."""

    kind: Literal["cuda", "cpu", "mps"]
    notice: str | None = None
    indices: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class VisibleDevices:
    """GPUs that one rank sees, if a launcher such as torchrun started it. `host`: name of its machine. `local_rank`:
    the rank's index on the machine; None if the launcher does not set it. `gpus`: unique names of the GPUs."""

    host: str
    local_rank: int | None
    gpus: tuple[str, ...]


def choose_device(layout: LayoutPlan, num_visible: int, where: str = "here") -> DeviceChoice:
    """Return the devices for ranks on one machine. With `layout.device: auto`, the CPU is chosen if there is no GPU.
    Raises RunFailure if there are GPUs, but fewer than the layout needs. `num_visible`: number of visible GPUs.
    `where`: the machine, for messages (`here`, `on gpu07`)."""
    if layout.device == "cpu":
        return DeviceChoice("cpu")
    if layout.device == "mps":
        if has_mps():
            return DeviceChoice("mps")
        raise RunFailure(
            f"torch finds no Apple GPU here ({sys.platform}); help: --set layout.device=auto uses CUDA, or the CPU"
        )
    if num_visible >= num_gpus_wanted(layout):
        return DeviceChoice("cuda")
    if num_visible == 0 and layout.device == "auto":
        more = (
            "; --set layout.device=mps uses Apple's"
            if layout.is_one_process and not layout.scatters and has_mps()
            else ""
        )
        return DeviceChoice("cpu", f"no GPU here: {_processes(layout)} on CPU{more}")
    raise _too_few_gpus(layout, num_visible, where)


def assign_devices(layout: LayoutPlan, all_visible: Sequence[VisibleDevices]) -> DeviceChoice:
    """Return the devices of ranks that a launcher started. A rank uses the GPU with its index in the plan or, if it
    sees only one GPU, that one. `all_visible`: the GPUs that each rank sees. Raises RunFailure if GPUs are missing, or
    if a rank's index on its machine is not the one in the plan."""
    if layout.device in ("cpu", "mps") or len(layout.ranks) < 2 or not any(visible.gpus for visible in all_visible):
        return choose_device(layout, len(all_visible[0].gpus))
    gpus: dict[str, set[str]] = {}
    for visible in all_visible:
        gpus.setdefault(visible.host, set()).update(visible.gpus)
    indices, taken = [], set()
    for rank, visible in zip(layout.ranks, all_visible, strict=True):
        if visible.local_rank not in (None, rank.local_rank):
            raise RunFailure(
                f"rank {rank.rank} is number {visible.local_rank} of its machine ({visible.host}), but number "
                f"{rank.local_rank} in the plan; help: start {format_count(layout.gpus_per_node, 'rank')} on each "
                "machine, "
                "one machine after the other (torchrun does; srun: --distribution=block)"
            )
        index = rank.device if len(visible.gpus) > 1 else 0
        if index >= len(visible.gpus) or (visible.host, visible.gpus[index]) in taken:
            poorest = min(gpus, key=lambda host: len(gpus[host]))
            raise _too_few_gpus(layout, len(gpus[poorest]), f"on {poorest}")
        taken.add((visible.host, visible.gpus[index]))
        indices.append(index)
    return DeviceChoice("cuda", indices=tuple(indices))


def _processes(layout: LayoutPlan) -> str:
    if layout.place_word == "process":
        return "one process"
    return format_count(layout.num_devices, "replica" if layout.scatters else "rank")


def _too_few_gpus(layout: LayoutPlan, num_visible: int, where: str) -> RunFailure:
    """Return the failure for missing GPUs, with a message that proposes another layout. `where`: the machine, on which
    `num_visible` GPUs are visible."""
    named = {*layout.devices, *layout.rank_devices}
    key = "gpus" if layout.num_nodes == 1 else "gpus_per_node"
    if num_visible >= len(named):
        wanted, fix = f"layout.gpus names GPU {max(named)}", f"number them from 0 to {num_visible - 1}"
    else:
        wanted = (
            f"the layout is for {format_count(len(named), 'GPU')}{' of each machine' if layout.num_nodes > 1 else ''}"
        )
        fix = f"--set layout.{key}={num_visible}" if num_visible else "`dtrain doctor` shows what CUDA sees"
    visible = format_count(num_visible, "GPU") if num_visible else "no GPU"
    mask = os.environ.get("CUDA_VISIBLE_DEVICES")
    seen = "" if mask is None else f" (CUDA_VISIBLE_DEVICES={mask})"
    return RunFailure(
        f"{wanted}, and {visible} {'are' if num_visible > 1 else 'is'} visible {where}{seen}; help: {fix}, or "
        f"--set layout.device=cpu for {_processes(layout)} on CPU"
    )


def num_gpus_wanted(layout: LayoutPlan) -> int:
    """Return the number of GPUs that each node must have: the highest GPU index in the layout plus one. It is not the
    number of indices, because the layout may leave out some."""
    return max(*layout.devices, *layout.rank_devices, 0) + 1


def num_gpus() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def has_mps() -> bool:
    """Return whether torch can use the GPU of an Apple machine."""
    import torch

    return torch.backends.mps.is_available()


def find_visible_devices() -> VisibleDevices:
    """Return the GPUs that this process sees. This initialises CUDA, so this process cannot fork ranks afterwards."""
    join_freed_memory()
    return VisibleDevices(socket.gethostname(), local_rank(), tuple(map(_name_of_gpu, range(num_gpus()))))


def _name_of_gpu(index: int) -> str:
    import torch

    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    return str(uuid or f"{os.environ.get('CUDA_VISIBLE_DEVICES', '')}:{index}")


def device_of(rank: RankPlan, kind: str, index: int | None = None) -> torch.device:
    """Return the torch device of a rank. `kind`: cpu, cuda or mps. `index`: index of the GPU among those that this rank
    sees; None: the index in the plan."""
    import torch

    if kind == "mps":
        return torch.device("mps", 0)
    return torch.device("cpu") if kind == "cpu" else torch.device("cuda", rank.device if index is None else index)


def exact_device(device: torch.device) -> torch.device:
    """Return the device on which results of `device` are summed in float64: the CPU for `mps`, because Apple's GPUs
    have no float64; otherwise `device` itself."""
    import torch

    return torch.device("cpu") if device.type == "mps" else device


def threads_per_rank(num_local_ranks: int) -> int:
    """Return the number of CPU threads per rank. It is OMP_NUM_THREADS if this is set, otherwise the number of cores
    divided by the number of ranks on this machine."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    return max(1, num_cores() // num_local_ranks)


def safe_threads(wanted: int) -> int:
    """Return how many CPU threads a forked rank can use. It is `wanted`, or 1 if this process already has an OpenMP
    thread pool: the pool does not survive a fork, and the rank would wait for it forever. torch does not report whether
    there is a pool. So this function forks a child that tries to use one."""
    import torch

    if wanted == 1:
        return 1
    child = os.fork()
    if child == 0:
        torch.set_num_threads(2)
        torch.exp(torch.rand(1 << 18))
        os._exit(0)
    deadline = time.monotonic() + TRIAL_S
    while time.monotonic() < deadline:
        if os.waitpid(child, os.WNOHANG) != (0, 0):
            return wanted
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return 1


def bind_to_gpu(device: torch.device) -> None:
    """Make a GPU the default CUDA device of this process."""
    import torch

    join_freed_memory()
    torch.cuda.set_device(device)


def join_freed_memory() -> None:
    """Make torch join freed pieces of GPU memory (`expandable_segments`), which reduces fragmentation. Call this before
    CUDA allocates memory, because torch reads the setting only once."""
    if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")


def keep_freed_memory() -> None:
    """Make this process keep freed CPU memory, if the C library supports this (`mallopt` of glibc).

    By default, large freed blocks go back to the system, which must clear their pages again in the next step. This cost
    up to a tenth of the time of a small model. The price is that a rank's memory stays at its peak."""
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # musl has none
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT)
        mallopt(_M_TRIM_THRESHOLD, _NEVER)


def start_autograd() -> None:
    """Run a first backward, which starts autograd's threads, one per GPU. It must run before torch's fake tensors are
    used. With fake tensors, a CUDA build of torch assumes a GPU, and cannot start its thread on a machine without one.
    Processes that are forked after this call cannot compute gradients."""
    import torch

    torch.ones((), requires_grad=True).backward()  # type: ignore[no-untyped-call]
