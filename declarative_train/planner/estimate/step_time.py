"""Predicted time of an optimizer step: kernels, calls of the host, transfers over links, and idle time in a pipeline.

matrix products  the maximum of arithmetic (with a start-up time) and memory traffic (roofline model)
other kernels    their memory traffic
a node           the maximum of its kernels and the host's time to start them
fsdp             gathers overlap with forward and backward, reductions with the last backward
ddp              all buckets except the last overlap with the last backward
a CPU            nothing overlaps: products, memory traffic, calls and communication add up

All constants are in `constants.py`. Roofline: Williams, Waterman and Patterson, 2009."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import exp

import numpy as np

from declarative_train.components.hardware.hardware import Precision
from declarative_train.components.pipeline_schedules import PIPELINE_SCHEDULES
from declarative_train.planner.estimate.constants import Link, Machine
from declarative_train.planner.estimate.kernels import ATTENTION, CONVOLUTION, MEMORY, SUMMED, SUMMED_FAR, Kernels
from declarative_train.planner.estimate.model import COMPUTE_BYTES, PARAMETER_BYTES, REDUCE_BYTES, ModelFacts
from declarative_train.planner.estimate.placement import DevicePart, Placement
from declarative_train.planner.estimate.replay import StageTime, pipeline_s
from declarative_train.planner.estimate.traffic import (
    SCATTERED,
    Transfer,
    dp_transfers,
    gathers,
    layer_exchanges,
    messages,
    reductions,
)

LINK_OF: dict[int, Link] = {SUMMED: "node", SUMMED_FAR: "network"}
LOSS_CALLS, LOSS_PASSES = 10, 9  # of a loss over classes, forward and backward: conversion, log-softmax, choice


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one optimizer step on the slowest device, by part.

    exposed_s   communication during which nothing is computed
    bubble_s    idle time in the pipeline
    waiting_s   waiting for data
    transfers   all communication, including that which overlaps with computing"""

    compute_s: float
    exposed_s: float
    bubble_s: float
    update_s: float
    transfers: tuple[Transfer, ...]
    waiting_s: float = 0.0

    @property
    def total_s(self) -> float:
        return self.compute_s + self.exposed_s + self.bubble_s + self.update_s + self.waiting_s

    def scale_by(self, factor: float) -> StepTime:
        """Return this time with all seconds multiplied by `factor`. The transfers are unchanged. The seconds of waiting
        for data are 0, because the caller adds them later."""
        compute_s, exposed_s = factor * self.compute_s, factor * self.exposed_s
        return StepTime(compute_s, exposed_s, factor * self.bubble_s, factor * self.update_s, self.transfers)


def interval(step_s: float, machine: Machine) -> tuple[float, float]:
    """Return (low, high) in seconds. About 90 of 100 measured steps whose predicted time is `step_s` are in this range.
    Its width comes from the errors of earlier predictions: with a calibration, those of the steps measured for it;
    otherwise those of published steps to which the constants were not fitted."""
    return step_s * exp(-machine.constants.error), step_s * exp(machine.constants.error)


def step_time(model: ModelFacts, placement: Placement, machine: Machine) -> StepTime | None:
    """Return the predicted time of a step. Return None if the device does not support the precision, or if its speed is
    not known (for example, of a CPU that was not calibrated)."""
    hardware = machine.hardware
    if hardware.peak_of(model.arithmetic) is None or None in (hardware.memory_per_s, hardware.link_per_s):
        return None
    stages = {
        at: _stage_time(at, names, model, placement, machine)
        for part in placement.parts
        for at, names in zip(part.numbers, part.stages, strict=True)
    }
    times = [
        _part_time(part, [stages[at] for at in part.numbers], model, placement, machine) for part in placement.parts
    ]
    scale = machine.constants.scale
    slowest = max(times, key=lambda time: time.total_s)
    if placement.pipes is None:
        return slowest.scale_by(scale)
    in_order = [stages[at] for at in sorted(stages)]
    whole_s = pipeline_s(placement.pipes.schedule, placement.pipes.num_ranks, in_order, placement.num_microbatches)
    bubble_s = max(0.0, whole_s - max(time.compute_s for time in times))
    return replace(slowest, bubble_s=bubble_s).scale_by(scale)


def _part_time(
    part: DevicePart, passes: Sequence[StageTime], model: ModelFacts, placement: Placement, machine: Machine
) -> StepTime:
    """Return the time of a step on one device, without idle time in the pipeline. `part`: the part of the model that is
    on the device. `passes`: for each pipeline stage in this part, the seconds of one microbatch."""
    number = placement.num_microbatches
    if placement.scatters and not machine.constants.runs_ahead:  # one process computes all copies, with all its cores
        number *= placement.num_devices
    forward_s, backward_s = sum(each.forward_s for each in passes), sum(each.backward_s for each in passes)
    gathered, reduced = gathers(part, model, placement, machine), reductions(part, model, placement, machine)
    sent, copied = messages(part, model, placement, machine), dp_transfers(part, model, placement, machine)
    if placement.pipes is not None or not machine.constants.runs_ahead:
        exposed_s = _seconds([*gathered, *reduced, *copied])
    elif placement.is_sharded:
        exposed_s = _time_exposed(forward_s, backward_s, number, _seconds(gathered), _seconds(reduced), len(part.nodes))
    else:
        last_s = max((each.call_s for each in reduced), default=0.0)
        exposed_s = max(last_s, _seconds(reduced) - backward_s) + _seconds(copied)
    if placement.is_sharded:
        exposed_s += machine.constants.shard_call_s * sum(each.num_calls for each in (*gathered, *reduced))
    return StepTime(
        compute_s=number * (forward_s + backward_s),
        exposed_s=exposed_s + _repack_s(gathered, reduced, model, placement, machine),
        bubble_s=0.0,
        update_s=_update_s(part, model, placement, machine),
        transfers=(*gathered, *reduced, *sent, *copied, *layer_exchanges(part, model, placement, machine)),
    )


def _seconds(transfers: Iterable[Transfer]) -> float:
    return sum(transfer.seconds for transfer in transfers)


def _repack_s(
    gathered: Iterable[Transfer], reduced: Iterable[Transfer], model: ModelFacts, placement: Placement, machine: Machine
) -> float:
    """Return the seconds in which `fully_shard` copies values between tensors and communication buffers. Gathered
    parameters are copied out of a buffer, in the compute dtype. Gradients are cast to the dtype of the reduction and
    copied into a buffer. `gathered`: the transfers of parameters. `reduced`: the transfers of gradients."""
    size = placement.shards.size
    if not placement.is_sharded or placement.sharding is None:
        return 0.0
    whole = size / (size - 1)  # a rank sends all but its own part
    unpacked = 2 * whole * sum(each.bytes_sent for each in gathered)
    scattered = whole * sum(each.bytes_sent for each in reduced if each.what.endswith(SCATTERED))
    packed = scattered * (1 + COMPUTE_BYTES[model.precision] / REDUCE_BYTES[model.reduce])
    return (unpacked + packed) / machine.memory_per_s


def _time_exposed(
    forward_s: float, backward_s: float, number: int, gather_s: float, reduce_s: float, num_nodes: int
) -> float:
    """Return the seconds of a step in which fsdp communicates and no computation runs. These are the time of the first
    unit's gather, and the time by which the communication during a forward or backward takes longer than its
    computation.

    `number`                  forwards in a step
    `forward_s`, `backward_s` seconds of one forward and one backward, without communication
    `gather_s`, `reduce_s`    seconds of all gathers and of all reductions in a step
    `num_nodes`               number of graph nodes, which approximates the number of units
    """
    once_s = gather_s / (2 * number)
    first_s = max(0.0, once_s - forward_s)
    again_s = max(0.0, once_s - backward_s)
    last_s = max(0.0, once_s + reduce_s - backward_s)
    return number * first_s + (number - 1) * again_s + last_s + once_s / max(1, num_nodes)


def _stage_time(
    number: int, names: Sequence[str], model: ModelFacts, placement: Placement, machine: Machine
) -> StageTime:
    """Return the seconds of one microbatch in a stage. `number`: index of the stage. `names`: its nodes. The backward
    includes the recomputation of activations."""
    pipes, rows = placement.pipes, placement.rows
    is_last, _ = model.images.decide("cuda", is_plain=not placement.is_sharded and pipes is None)
    forward_s = backward_s = weights_s = 0.0
    for node in map(model.nodes.__getitem__, names):
        kernels = model.kernels(node.name)
        ahead_s = _pass_s(kernels.forward, machine, model.arithmetic, rows, model.compiled)
        back_s = _pass_s(kernels.backward, machine, model.arithmetic, rows, model.compiled)
        turning_s = _moved_s(2 * model.images.count_in(node.reordered, is_last=is_last) * rows, model, machine)
        forward_s += ahead_s + turning_s
        backward_s += back_s + 2 * turning_s + (ahead_s + turning_s) * node.recomputed
        weights_s += back_s / 2 + turning_s
    if pipes is None or number == pipes.num_stages - 1:
        loss_s = _loss_s(model, rows, machine)
        forward_s, backward_s = forward_s + loss_s / 3, backward_s + 2 * loss_s / 3
    if pipes is None:
        return StageTime(forward_s, backward_s, weights_s)
    call_s = machine.constants.stage_call_s
    return StageTime(forward_s + call_s, backward_s + call_s, weights_s, *_hops_s(number, placement, machine))


@lru_cache(maxsize=65536)
def _pass_s(kernels: Kernels, machine: Machine, precision: Precision, rows: int, is_compiled: bool) -> float:
    """Return the seconds of one forward or backward through a node. `rows`: samples in a microbatch. `is_compiled`:
    elementwise operations are fused."""
    constants, hardware = machine.constants, machine.hardware
    peak = hardware.peak_of(precision)
    assert peak is not None
    flops, moved = kernels.flops @ (1, rows), kernels.moved @ (1, rows)
    calls, is_memory = kernels.calls.copy(), kernels.kind == MEMORY
    if is_compiled:
        moved[is_memory] *= constants.fused_traffic
        calls[is_memory] *= constants.fused_calls
    memory_s = moved / machine.memory_per_s
    rate = np.full(len(flops), peak * hardware.reached)
    rate[kernels.kind == ATTENTION] *= constants.attention_efficiency
    rate[kernels.kind == CONVOLUTION] *= constants.convolution_efficiency
    product_s = flops / rate + kernels.calls * constants.product_ramp_s
    product_s = np.maximum(product_s, memory_s) if constants.runs_ahead else product_s + memory_s
    device_s = np.where(is_memory, memory_s + flops * constants.draw_s, product_s)
    for kind, link in LINK_OF.items():
        of_kind = kernels.kind == kind
        if of_kind.any():  # here `calls` is the number of ranks of the all-reduce
            size = int(calls[of_kind][0])
            latency_s = machine.latency_s(size) if link == "node" else machine.latency_s(8, size // 8)
            device_s[of_kind] = moved[of_kind] / machine.link_per_s(link) + latency_s
            calls[of_kind] = 1
    host_s = float(calls.sum()) * constants.call_s
    return max(float(device_s.sum()), host_s) if constants.runs_ahead else float(device_s.sum()) + host_s


def _moved_s(elements: float, model: ModelFacts, machine: Machine) -> float:
    """Return the seconds to read or write `elements` elements in the compute dtype."""
    return elements * COMPUTE_BYTES[model.precision] / machine.memory_per_s


def _loss_s(model: ModelFacts, rows: float, machine: Machine) -> float:
    """Return the seconds that the losses of `rows` samples take, forward and backward together. Losses are computed in
    float32."""
    moved_s = LOSS_PASSES * 4 * model.scored * rows / machine.memory_per_s
    return max(moved_s, LOSS_CALLS * machine.constants.call_s)


def _hops_s(number: int, placement: Placement, machine: Machine) -> tuple[float, float]:
    """Return (forward, backward): seconds in which stage `number` sends the values of one microbatch. Forward, it sends
    its output to the next stage. Backward, it sends the gradient of its input to the previous stage. A time is 0 if the
    other stage is on the same rank or does not exist."""
    pipes = placement.pipes
    assert pipes is not None
    schedule = PIPELINE_SCHEDULES[pipes.schedule]

    def hop_s(other: int, num_bytes: int) -> float:
        ranks = [schedule.rank_of(at, pipes.num_ranks, pipes.num_stages) for at in (number, other)]
        if ranks[0] == ranks[1]:
            return 0.0
        nodes = [rank * pipes.stride // placement.devices_per_node for rank in ranks]
        link: Link = "node" if nodes[0] == nodes[1] else "network"
        return num_bytes * placement.rows / machine.link_per_s(link) + machine.latency_s(
            *((2, 1) if link == "node" else (1, 2))
        )

    onward_s = hop_s(number + 1, pipes.wires[number].forward) if number + 1 < pipes.num_stages else 0.0
    return onward_s, hop_s(number - 1, pipes.wires[number - 1].backward) if number else 0.0


def _update_s(part: DevicePart, model: ModelFacts, placement: Placement, machine: Machine) -> float:
    """Return the seconds of the update at the end of a step: the memory traffic of the optimizer and of the addition of
    microbatch gradients, and constant times per step and per tensor."""
    constants = machine.constants
    held = model.share_of(part.nodes, placement.shards.size)
    moved = (3 * held.trained + 2 * held.state) * PARAMETER_BYTES[model.precision]
    added = 3 * (placement.num_microbatches - 1) * held.trained * PARAMETER_BYTES[model.precision]
    device_s = (moved + added) / machine.memory_per_s
    tensors = sum(len(model.nodes[name].parameters) for name in part.nodes)
    return device_s + constants.step_s + tensors * constants.tensor_s
