"""Devices that a recipe can name by `layout.hardware`, and the lookup of the device that a run uses."""

from __future__ import annotations

from declarative_train.components.hardware.devices import CPU, GPUS
from declarative_train.components.hardware.hardware import Hardware

HARDWARE: dict[str, Hardware] = {each.name: each for each in sorted((*GPUS, CPU), key=lambda each: each.name)}


def hardware_of_device(name: str) -> Hardware | None:
    """Return the hardware with this torch device name, or None if no entry of the table has it, as for a MIG slice of a
    GPU."""
    return next((each for each in HARDWARE.values() if name in each.device_names), None)
