"""How much of the devices' peak a run uses: model FLOPs utilisation (MFU), Chowdhery et al., PaLM, 2022, appendix B."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from declarative_train.components.hardware import hardware_of_device

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan


def samples_per_s_at_peak(plan: Plan, device: torch.device) -> float | None:
    """What all devices of the plan would do together if they computed nothing but the model, at their peak. The rate of
    a run over this one is its MFU. None on the CPU, on a device that is in no table, and without a matrix product."""
    peak = peak_flops(device, plan.training.precision)
    if peak is None or not plan.flops.model:
        return None
    return peak * plan.layout.num_devices / plan.flops.model


def predicted(plan: Plan, device: torch.device) -> tuple[dict[str, float], str | None]:
    """The plan's estimate, where it is of the device that the run is on; else a sentence that says why it is not. A
    device that no table has may be any: the recipe is believed."""
    estimate = plan.estimate
    if estimate is None or estimate.step_s is None:
        return {}, None
    found = hardware_of_device(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    here = device.type if found is None else found.name
    if here == "cpu" or (found is not None and found.name != estimate.hardware):
        return {}, f"the plan's estimates are of {estimate.hardware}, and this run is on {here}: they are not compared"
    values = {"step_ms": estimate.step_s * 1e3, "memory_gib": estimate.memory_bytes / 2**30, "mfu": estimate.mfu}
    return {name: value for name, value in values.items() if value is not None}, None


def peak_flops(device: torch.device, precision: str) -> float | None:
    """Of one device, per second, from its data sheet."""
    if device.type != "cuda":
        return None
    hardware = hardware_of_device(torch.cuda.get_device_name(device))
    return None if hardware is None else hardware.peak_of(precision)
