"""Which device the ranks use: decided once, for all of them, and said when it is not what the layout names."""

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

from declarative_train.core.amounts import counted
from declarative_train.core.machine import num_cores
from declarative_train.engine.failures import RunFailure
from declarative_train.engine.launchers import local_rank

if TYPE_CHECKING:
    import torch

    from declarative_train.plan.layout import LayoutPlan, RankPlan

# asks the driver's library, not CUDA itself: a parent that has initialised CUDA cannot fork ranks that use it
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

TRIAL_S = 2.0  # of a child that makes a pool of threads
# <malloc.h>
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGEST_KEPT = 32 << 20  # the most that glibc takes as M_MMAP_THRESHOLD; larger pieces come and go as before
_NEVER = -1


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """`indices`: the GPU of each rank as that rank counts them; empty: those of the plan."""

    kind: Literal["cuda", "cpu", "mps"]
    notice: str | None = None
    indices: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Seat:
    """What a rank that somebody else started sees of its machine. `gpus` are names that no two GPUs share;
    `local_rank` is None where the launcher does not give it."""

    host: str
    local_rank: int | None
    gpus: tuple[str, ...]


def choose_device(layout: LayoutPlan, num_visible: int) -> DeviceChoice:
    """Of ranks on this machine, `num_visible` of whose GPUs this process may use. None at all: `auto` takes the CPU.
    Some, but fewer than the layout wants: nobody wants a slow run on the CPU beside idle GPUs. Raises RunFailure."""
    if layout.device == "cpu":
        return DeviceChoice("cpu")
    if layout.device == "mps":
        if has_mps():
            return DeviceChoice("mps")
        raise RunFailure(
            f"there is no GPU of Apple's that torch can use here ({sys.platform}); help: --set layout.device=auto "
            "takes CUDA, or the CPU"
        )
    if num_visible >= num_gpus_wanted(layout):
        return DeviceChoice("cuda")
    if num_visible == 0 and layout.device == "auto":
        more = (
            "; --set layout.device=mps takes Apple's"
            if layout.is_one_process and not layout.scatters and has_mps()
            else ""
        )
        return DeviceChoice("cpu", f"no GPU here: {_processes(layout)} on CPU{more}")
    raise _too_few(layout, num_visible, "here")


def seat_devices(layout: LayoutPlan, seats: Sequence[Seat]) -> DeviceChoice:
    """Of ranks that somebody else started, in their order. A rank that sees one GPU alone, as Slurm gives them, has
    it as number 0. Raises RunFailure, also where a rank stands elsewhere on its machine than in the plan."""
    if layout.device in ("cpu", "mps") or len(layout.ranks) < 2 or not any(seat.gpus for seat in seats):
        return choose_device(layout, len(seats[0].gpus))
    gpus: dict[str, set[str]] = {}
    for seat in seats:
        gpus.setdefault(seat.host, set()).update(seat.gpus)
    indices, taken = [], set()
    for rank, seat in zip(layout.ranks, seats, strict=True):
        if seat.local_rank not in (None, rank.local_rank):
            raise RunFailure(
                f"rank {rank.rank} is number {seat.local_rank} of its machine ({seat.host}), and number "
                f"{rank.local_rank} in the plan; help: start {counted(layout.gpus_per_node, 'rank')} on each machine, "
                "one machine after the other (torchrun does; srun: --distribution=block)"
            )
        index = rank.device if len(seat.gpus) > 1 else 0
        if index >= len(seat.gpus) or (seat.host, seat.gpus[index]) in taken:
            poorest = min(gpus, key=lambda host: len(gpus[host]))
            raise _too_few(layout, len(gpus[poorest]), f"on {poorest}")
        taken.add((seat.host, seat.gpus[index]))
        indices.append(index)
    return DeviceChoice("cuda", indices=tuple(indices))


def _processes(layout: LayoutPlan) -> str:
    if layout.place_word == "process":
        return "one process"
    return counted(layout.num_devices, "replica" if layout.scatters else "rank")


def _too_few(layout: LayoutPlan, num_visible: int, where: str) -> RunFailure:
    """What is visible, and what to write."""
    named = {*layout.devices, *(rank.device for rank in layout.ranks)} or {0}
    key = "gpus" if layout.num_nodes == 1 else "gpus_per_node"
    if num_visible >= len(named):
        wanted, fix = f"layout.gpus names GPU {max(named)}", f"number them from 0 to {num_visible - 1}"
    else:
        wanted = f"the layout is for {counted(len(named), 'GPU')}{' of each machine' if layout.num_nodes > 1 else ''}"
        fix = f"--set layout.{key}={num_visible}" if num_visible else "`dtrain doctor` shows what CUDA sees"
    visible = counted(num_visible, "GPU") if num_visible else "no GPU"
    mask = os.environ.get("CUDA_VISIBLE_DEVICES")
    seen = "" if mask is None else f" (CUDA_VISIBLE_DEVICES={mask})"
    return RunFailure(
        f"{wanted}, and {visible} {'are' if num_visible > 1 else 'is'} visible {where}{seen}; help: {fix}, or "
        f"--set layout.device=cpu for {_processes(layout)} on CPU"
    )


def num_gpus_wanted(layout: LayoutPlan) -> int:
    """On the node that wants most: indices are those of the layout."""
    return max((*layout.devices, *(rank.device for rank in layout.ranks)), default=0) + 1


def num_gpus() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def has_mps() -> bool:
    """Whether torch can use the GPU of an Apple machine here."""
    import torch

    return torch.backends.mps.is_available()


def own_seat() -> Seat:
    """Of a process that forks no ranks: it may ask CUDA itself."""
    join_freed_memory()
    return Seat(socket.gethostname(), local_rank(), tuple(map(_name_of_gpu, range(num_gpus()))))


def _name_of_gpu(index: int) -> str:
    import torch

    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    return str(uuid or f"{os.environ.get('CUDA_VISIBLE_DEVICES', '')}:{index}")


def device_of(rank: RankPlan, kind: str, index: int | None = None) -> torch.device:
    """`index`: instead of the plan's, where a rank sees other GPUs than its siblings."""
    import torch

    if kind == "mps":
        return torch.device("mps", 0)
    return torch.device("cpu") if kind == "cpu" else torch.device("cuda", rank.device if index is None else index)


def exact_device(device: torch.device) -> torch.device:
    """Where sums in float64 of what this device computes are made: itself, or the CPU for Apple's GPUs, which have no
    float64."""
    import torch

    return torch.device("cpu") if device.type == "mps" else device


def threads_per_rank(num_local_ranks: int) -> int:
    """The cores shared out; OMP_NUM_THREADS wins."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    return max(1, num_cores() // num_local_ranks)


def safe_threads(wanted: int) -> int:
    """As many threads as a forked rank may use: 1 when this process has an OpenMP pool already, since that does not
    survive a fork and the rank would wait for it for ever. Nobody can ask for the pool, so a child tries."""
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
    """What this process computes without another word is computed there."""
    import torch

    join_freed_memory()
    torch.cuda.set_device(device)


def join_freed_memory() -> None:
    """For this process, where it computes on GPUs: pieces that are freed can be joined, so that less is lost at the
    edge of memory. torch's allocator reads its settings once, when CUDA is first asked for more than the number of
    GPUs: this comes before."""
    if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")


def keep_freed_memory() -> None:
    """For this process, from now on, where it computes on the CPU; nothing where the C library has no such switch.

    Each step frees its activations, and the C library gives large pieces back to the system, which has to clear every
    page anew in the next step: 3,000 page faults and a twentieth of the time of a small GPT's step, a tenth of a small
    CNN's (measured). `mallopt(3)` of glibc tells it not to, as torch's allocators keep the memory of a GPU. What a rank
    holds stays that of its largest moment, which is what the plan and the logs show anyway.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # musl has none
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT)
        mallopt(_M_TRIM_THRESHOLD, _NEVER)


def start_autograd() -> None:
    """The first backward of a process starts a thread for each device, after which no forked child can differentiate.
    torch's fake tensors let a CUDA build without a GPU believe in one: before them there is none to start a thread
    for."""
    import torch

    torch.ones((), requires_grad=True).backward()  # type: ignore[no-untyped-call]
