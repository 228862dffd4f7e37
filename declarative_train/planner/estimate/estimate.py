"""Estimate in a plan: memory and time on a kind of hardware, with the assumptions in words."""

from __future__ import annotations

from declarative_train.components.hardware.hardware import Hardware
from declarative_train.core.amounts import amount
from declarative_train.plan.predictions import EstimatePlan, FlopsPlan, TransferPlan
from declarative_train.planner.estimate.model import ModelFacts
from declarative_train.planner.estimate.placement import Placement
from declarative_train.planner.estimate.step_time import (
    COMPUTE_EFFICIENCY,
    LAUNCH_S,
    MEMORY_EFFICIENCY,
    StepTime,
    step_time,
)
from declarative_train.planner.estimate.traffic import LATENCY_S, LINK_EFFICIENCY, Transfer, transfers_of


def estimate(
    model: ModelFacts,
    placement: Placement,
    hardware: Hardware,
    flops: FlopsPlan,
    global_batch_size: int,
    memory_bytes: int,
) -> EstimatePlan:
    """Return the estimate. `memory_bytes`: memory of the device that needs the most."""
    time = step_time(model, placement, hardware)
    transfers = transfers_of(model, placement, hardware)
    peak = hardware.peak_of(model.arithmetic)
    at_peak_s = None if peak is None else global_batch_size / (peak * placement.num_devices)
    return EstimatePlan(
        hardware=hardware.name,
        memory_bytes=memory_bytes,
        device_memory_bytes=hardware.memory_bytes,
        step_s=None if time is None else time.total_s,
        compute_s=None if time is None else time.compute_s,
        exposed_s=None if time is None else time.exposed_s,
        bubble_s=None if time is None else time.bubble_s,
        update_s=None if time is None else time.update_s,
        mfu=_utilisation(flops.model, at_peak_s, time),
        hfu=_utilisation(flops.hardware, at_peak_s, time),
        transfers=tuple(_transfer(each) for each in transfers),
        assumptions=tuple(assumptions(hardware, model.arithmetic)),
    )


def _utilisation(operations: int, at_peak_s: float | None, time: StepTime | None) -> float | None:
    return None if at_peak_s is None or time is None else operations * at_peak_s / time.total_s


def _transfer(each: Transfer) -> TransferPlan:
    seconds = None if each.per_s is None else each.seconds
    return TransferPlan(each.what, each.link, round(each.bytes_sent), each.num_calls, seconds)


def assumptions(hardware: Hardware, precision: str) -> list[str]:
    peak = hardware.peak_of(precision)
    not_counted = "not counted: evaluations, metrics, fragments of the device's memory"
    if peak is None:
        lacking = "its speed" if not hardware.peak_flops else precision
        return [f"the {lacking} of {hardware.name} is unknown, so times are not estimated", not_counted]
    wide = " without TF32" if precision == "fp32" else ""
    return [
        f"{hardware.name}, {precision}{wide}: {amount(peak, 'FLOP/s')} peak, of which large products reach "
        f"{COMPUTE_EFFICIENCY:.0%} ({hardware.source})",
        f"memory at {MEMORY_EFFICIENCY:.0%} and links at {LINK_EFFICIENCY:.0%} of their data-sheet values",
        f"at least {LAUNCH_S * 1e6:g} us for a layer, {LATENCY_S * 1e6:g} us for a collective or message",
        "communication overlaps with the backward (ddp) or with forward and backward (fsdp), not in a pipeline",
        f"{not_counted}, what `compile` saves",
    ]
