"""Which device the ranks use: decided once, by the parent, and said when it is not what the layout names."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from declarative_train.runtime.failures import RunFailure
from declarative_train.terms.amounts import counted

if TYPE_CHECKING:
    from declarative_train.plan.plan import LayoutPlan, RankPlan

# asks the driver's library, not CUDA itself: a parent that has initialised CUDA cannot fork ranks that use it
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    kind: Literal["cuda", "cpu"]
    notice: str | None = None


def choose_device(layout: LayoutPlan, num_available: int) -> DeviceChoice:
    """`num_available`: GPUs of this machine. Raises RunFailure when the plan insists on GPUs that are not there."""
    if layout.device == "cpu":
        return DeviceChoice("cpu")
    wanted = num_gpus_wanted(layout)
    if num_available >= wanted:
        return DeviceChoice("cuda")
    there = "no GPU" if num_available == 0 else f"{num_available} of {wanted} GPUs"
    if layout.device == "cuda":
        raise RunFailure(
            f"layout.device is cuda, and this machine has {there}; help: `layout.device: auto` runs them on CPU then"
        )
    ranks = max(len(layout.ranks), layout.num_replicas)
    what = {"single": "one process"}.get(layout.mode, counted(ranks, "replica" if layout.mode == "dp" else "rank"))
    return DeviceChoice("cpu", f"{there} here: {what} on CPU")


def num_gpus_wanted(layout: LayoutPlan) -> int:
    """On the node that wants most: indices are those of the layout."""
    return max((*layout.devices, *(rank.device for rank in layout.ranks)), default=0) + 1


def num_gpus() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def device_of(rank: RankPlan, kind: str) -> str:
    return f"cuda:{rank.device}" if kind == "cuda" else "cpu"


def threads_per_rank(num_local_ranks: int) -> int:
    """The cores shared out; OMP_NUM_THREADS wins."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    return max(1, len(os.sched_getaffinity(0)) // num_local_ranks)
