"""Estimate of a plan: memory and time of a step on the given hardware, with the assumptions as text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from declarative_train.core.amounts import amount
from declarative_train.plan.predictions import EstimatePlan, FlopsPlan, TransferPlan
from declarative_train.planner.estimate.constants import Machine
from declarative_train.planner.estimate.model import ModelFacts
from declarative_train.planner.estimate.placement import Placement
from declarative_train.planner.estimate.step_time import StepTime, interval, step_time
from declarative_train.planner.estimate.traffic import Transfer, transfers_of


def estimate(
    model: ModelFacts,
    placement: Placement,
    machine: Machine,
    flops: FlopsPlan,
    global_batch_size: int,
    memory_bytes: int,
    data_s: float,
) -> EstimatePlan:
    """Return the estimate of a plan. `memory_bytes`: memory of the device that needs most. `data_s`: seconds to make
    the batches of a step. If the batches take longer than computation and communication, the step waits for them."""
    time = step_time(model, placement, machine)
    if time is not None:
        time = replace(time, waiting_s=max(0.0, data_s - time.total_s))
    low_s, high_s = (None, None) if time is None else interval(time.total_s, machine)
    hardware, transfers = machine.hardware, transfers_of(model, placement, machine)
    peak = hardware.peak_of(model.arithmetic)
    at_peak_s = None if peak is None else global_batch_size / (peak * placement.num_devices)
    return EstimatePlan(
        hardware=hardware.name,
        memory_bytes=memory_bytes,
        device_memory_bytes=hardware.memory_bytes,
        step_s=None if time is None else time.total_s,
        low_s=low_s,
        high_s=high_s,
        compute_s=None if time is None else time.compute_s,
        exposed_s=None if time is None else time.exposed_s,
        bubble_s=None if time is None else time.bubble_s,
        update_s=None if time is None else time.update_s,
        data_s=None if time is None else data_s,
        mfu=_utilisation(flops.model, at_peak_s, time),
        hfu=_utilisation(flops.hardware, at_peak_s, time),
        transfers=tuple(_transfer(each) for each in transfers),
        assumptions=tuple(assumptions(machine, model.arithmetic, compiled=model.compiled)),
    )


def mean_estimate(parts: Iterable[tuple[float, EstimatePlan]]) -> EstimatePlan:
    """Return the mean of the estimates for several lengths of samples (length buckets), with the memory of the longest
    samples. `parts`: (share of the samples, estimate) for each length, the longest last."""
    pairs = list(parts)
    longest = pairs[-1][1]
    if len(pairs) == 1 or longest.step_s is None:
        return longest
    means: dict[str, Any] = {
        name: sum(share * getattr(each, name) for share, each in pairs)
        for name in ("step_s", "low_s", "high_s", "compute_s", "exposed_s", "bubble_s", "update_s")
    }
    used: dict[str, Any] = {
        name: None if value is None else value * longest.step_s / means["step_s"]
        for name, value in (("mfu", longest.mfu), ("hfu", longest.hfu))
    }
    note = "the mean over the length buckets, each with its share of the training samples"
    return replace(longest, **means, **used, assumptions=(*longest.assumptions, note))


def _utilisation(operations: int, at_peak_s: float | None, time: StepTime | None) -> float | None:
    return None if at_peak_s is None or time is None else operations * at_peak_s / time.total_s


def _transfer(each: Transfer) -> TransferPlan:
    seconds = None if each.per_s is None else each.seconds
    return TransferPlan(each.what, each.link, round(each.bytes_sent), each.num_calls, seconds)


def assumptions(machine: Machine, precision: str, *, compiled: bool = False) -> list[str]:
    hardware, constants = machine.hardware, machine.constants
    peak = hardware.peak_of(precision)
    not_counted = "not counted: evaluations, metrics, fragments of the device's memory"
    if peak is None:
        lacking = "its speed" if not hardware.peak_flops else precision
        return [f"the {lacking} of {hardware.name} is unknown, so times are not estimated", not_counted]
    wide = " without TF32" if precision == "fp32" else ""
    return [
        f"{hardware.name}, {precision}{wide}: {amount(peak, 'FLOP/s')} peak, of which the best products reach "
        f"{hardware.reached:.0%} ({hardware.source})",
        f"memory at {constants.memory_efficiency:.0%}, links at {constants.link_efficiency:.0%} inside a node and "
        f"{constants.network_efficiency:.0%} between nodes, of their data-sheet values",
        f"{constants.call_s * 1e6:.3g} us for the host to start an operation"
        + (f", {1 - constants.fused_calls:.0%} of the elementwise ones fused by `compile`" if compiled else ""),
        "communication overlaps with the backward (ddp) or with forward and backward (fsdp), not in a pipeline",
        f"{not_counted}, what `compile` saves",
    ]
