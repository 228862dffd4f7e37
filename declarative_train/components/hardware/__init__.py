"""The devices that a recipe can name by `layout.hardware`, and that a run can find under it."""

from __future__ import annotations

from declarative_train.components.hardware.devices import CPU, GPUS
from declarative_train.components.hardware.hardware import Hardware

HARDWARE: dict[str, Hardware] = {each.name: each for each in sorted((*GPUS, CPU), key=lambda each: each.name)}


def hardware_of_device(name: str) -> Hardware | None:
    """By what torch calls a device; None when it is not in the table (a part of a GPU is not, either)."""
    return next((each for each in HARDWARE.values() if name in each.device_names), None)
