"""Device slots of a sweep: the cores and GPUs of this machine, divided among the runs that are active at the same
time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from declarative_train.core.amounts import format_count
from declarative_train.core.machine import num_cores, own_cores
from declarative_train.engine.devices import num_gpus, num_gpus_wanted
from declarative_train.plan.layout import LayoutPlan


class NoRoomError(Exception):
    """Error: more runs were requested at the same time than fit on this machine. The message names the limit."""


@dataclass(frozen=True)
class DeviceSlot:
    """Share of this machine's cores or GPUs, which one run of a sweep uses at a time. `environment`: environment
    variables that name the run's GPUs or set its number of threads. `cores`: indices of the cores that the run may use;
    (): all cores."""

    number: int
    environment: dict[str, str] = field(default_factory=dict)
    cores: tuple[int, ...] = ()


def assign_device_slots(layouts: Sequence[LayoutPlan], jobs: int | None) -> list[DeviceSlot]:
    """Divide the GPUs or cores of this machine into slots, and return them. Each slot is for one run at a time.
    `layouts`: layouts of all plans of the sweep; each of them must fit in a slot. `jobs`: number of slots; None: as
    many as fit. Raises NoRoomError."""
    gpus = visible_gpus() if any(layout.device not in ("cpu", "mps") for layout in layouts) else []
    if gpus:
        wanted = max(num_gpus_wanted(layout) for layout in layouts)
        room = max(1, len(gpus) // wanted)
        if jobs is not None and jobs > room:
            have = format_count(len(gpus), "GPU")
            raise NoRoomError(
                f"{jobs} points at once need {format_count(wanted, 'GPU')} each: this machine has {have}, "
                f"enough for {room}"
            )
        taken = [gpus[at * wanted : (at + 1) * wanted] for at in range(jobs or room)]
        return [DeviceSlot(at, {"CUDA_VISIBLE_DEVICES": ",".join(each or gpus)}) for at, each in enumerate(taken)]
    ranks = max(len(layout.ranks) for layout in layouts)
    count = jobs or max(1, num_cores() // ranks)
    return [_assign_cores(at, count, ranks) for at in range(count)]


def visible_gpus() -> list[str]:
    """Return the names of the GPUs that this process can use, as CUDA_VISIBLE_DEVICES needs them."""
    count = num_gpus()
    given = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return given[:count] if len(given) >= count else [str(index) for index in range(count)]


def _assign_cores(at: int, count: int, ranks: int) -> DeviceSlot:
    """Return slot number `at` of `count` slots, among which the cores of this machine are divided equally. A single
    slot has all cores and sets no limits. `ranks`: number of ranks in a slot. The cores of a slot are divided among its
    ranks as threads, unless the user set OMP_NUM_THREADS."""
    cores = own_cores()
    share = len(cores) // count
    if count == 1:
        return DeviceSlot(at)
    threads = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": str(max(1, share // ranks))}
    return DeviceSlot(at, threads, tuple(cores[at * share : (at + 1) * share]))
