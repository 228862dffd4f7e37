"""Hardware for which `auto` chooses: that of the recipe or, if the recipe names none, that of this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from declarative_train.components.hardware import HARDWARE, hardware_of_device
from declarative_train.components.hardware.hardware import Hardware
from declarative_train.core.amounts import amount, format_count
from declarative_train.planner.calibration import read_calibration
from declarative_train.planner.estimate.constants import Machine
from declarative_train.recipe.sections.layout import Layout

RESERVE = 0.1
"""Fraction of a device's memory for CUDA, its libraries, fragmentation, and what the estimate does not count."""
DRIVER = Path("/proc/driver/nvidia/gpus")
"""Files of the driver. They are read because a question to CUDA would initialise CUDA before the ranks fork."""


@dataclass(frozen=True, slots=True)
class Target:
    """Machine for which `auto` chooses a mode. `memory_bytes`: usable memory of one device. If it is None (unknown),
    every candidate fits. `assumptions`: texts for the plan about what is assumed or unknown."""

    machine: Machine | None
    memory_bytes: int | None
    assumptions: tuple[str, ...]

    @property
    def hardware(self) -> Hardware | None:
        """Hardware of the machine, if it is a GPU with a known size of memory; otherwise None."""
        is_gpu = self.machine is not None and self.machine.hardware.memory_bytes is not None
        return self.machine.hardware if self.machine is not None and is_gpu else None

    def holds(self, num_bytes: int) -> bool:
        return self.memory_bytes is None or num_bytes <= self.memory_bytes


def target_of(layout: Layout) -> Target:
    """Return the machine for which `parallelism: auto` chooses a mode, as the section `layout` describes it. If
    `layout` names a calibration file, the speeds come from this file."""
    if layout.calibration is None:
        return _choose_without_calibration(layout)
    machine, name = read_calibration(Path(layout.calibration)), Path(layout.calibration).name
    found = _cpu(layout) if machine.hardware.name == "cpu" else _on(machine.hardware, ())
    return replace(found, machine=machine, assumptions=(f"the speed is that of {name}", *found.assumptions[-1:]))


def _choose_without_calibration(layout: Layout) -> Target:
    if layout.hardware is not None and layout.hardware != "cpu":
        return _on(HARDWARE[layout.hardware], ())
    if layout.device == "mps":
        return Target(None, None, ("on mps: the speed and memory of Apple's GPUs are unknown",))
    if layout.hardware is None and layout.device != "cpu":
        name = gpu_here(layout.num_gpus_per_node)
        if name is not None:
            return _target_of_gpu(name)
    if layout.hardware is None and layout.device == "cuda":
        return Target(None, None, ("layout.hardware is not given: neither speed nor memory of the GPUs are known",))
    return _cpu(layout)


def _on(hardware: Hardware, assumptions: tuple[str, ...]) -> Target:
    assert hardware.memory_bytes is not None
    usable = int(hardware.memory_bytes * (1 - RESERVE))
    reserve = f"of {amount(hardware.memory_bytes, 'B')} on a device, {RESERVE:.0%} are kept free"
    return Target(Machine(hardware), usable, (*assumptions, reserve))


def _target_of_gpu(name: str) -> Target:
    hardware = hardware_of_device(name)
    if hardware is None:
        return Target(
            None,
            None,
            (f"layout.hardware is not given, and the speed and memory of {name}, found here, are unknown",),
        )
    return _on(hardware, (f"layout.hardware is not given: {hardware.name} of this machine is assumed",))


def _cpu(layout: Layout) -> Target:
    ranks = layout.num_gpus_per_node
    where = "layout.hardware is not given, and this machine lacks the GPUs" if layout.device == "auto" else "on CPUs"
    if layout.hardware == "cpu":
        where = "layout.hardware is cpu"
    unknown = f"{where}: the speed is unknown, so the simplest mode that fits is chosen"
    if layout.num_nodes > 1:
        return Target(None, None, (unknown, f"the memory of {format_count(layout.num_nodes, 'node')} is unknown"))
    memory = memory_here()
    shared = (
        f"its memory, {amount(memory, 'B')}, is shared by {format_count(ranks, 'rank')}, and {RESERVE:.0%} are "
        "kept free"
    )
    return Target(None, int(memory * (1 - RESERVE)) // ranks, (unknown, shared))


def memory_here() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def gpu_here(number: int) -> str | None:
    """Return the name of this machine's first GPU as its driver reports it, or None if torch finds fewer than `number`
    GPUs."""
    import torch

    if torch.cuda.device_count() < number:  # counted by NVML, which does not initialise CUDA
        return None
    for path in sorted(DRIVER.glob("*/information")):
        for line in path.read_text().splitlines():
            key, _, value = line.partition(":")
            if key == "Model":
                return value.strip()
    return "a GPU"
