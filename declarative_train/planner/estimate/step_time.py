"""Predicted time of an optimizer step: a roofline per layer, communication, and the idle time of a pipeline (bubble).

A layer takes as long as its products at a fraction of the peak, or as its memory traffic, whichever is longer, and at
least its launch time (Williams, Waterman and Patterson, Roofline, 2009). Communication overlaps with the backward
(ddp), or with forward and backward (fsdp), as far as these last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from declarative_train.components.hardware.hardware import Hardware
from declarative_train.components.pipeline_schedules import PIPELINE_SCHEDULES
from declarative_train.graph.cost import Work
from declarative_train.planner.estimate.model import COMPUTE_BYTES, PARAMETER_BYTES, ModelFacts
from declarative_train.planner.estimate.placement import DevicePart, Placement
from declarative_train.planner.estimate.traffic import Transfer, dp_transfers, gathers, messages, reductions

# Fraction of the peak in large products. In total, PaLM 540B reached 0.58 on TPUs, recomputation included (Chowdhery
# et al., 2022), Llama 3 405B 0.38 to 0.43 on H100 (Llama team, 2024, table 4).
COMPUTE_EFFICIENCY = 0.5
MEMORY_EFFICIENCY = 0.8
LAUNCH_S = 10e-6  # to start one layer: Python and a few kernels


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one optimizer step of the slowest device: computing, communication that no computation hides, idle in
    the pipeline, updating."""

    compute_s: float
    exposed_s: float
    bubble_s: float
    update_s: float
    transfers: tuple[Transfer, ...]

    @property
    def total_s(self) -> float:
        return self.compute_s + self.exposed_s + self.bubble_s + self.update_s


@dataclass(frozen=True, slots=True)
class _Pass:
    """Seconds of forward and backward for one microbatch. `backward_s` includes the recomputation."""

    forward_s: float
    backward_s: float
    weights_s: float


def step_time(model: ModelFacts, placement: Placement, hardware: Hardware) -> StepTime | None:
    """Return the time of a step; None if a figure of the hardware is missing: for a CPU, or for a precision that the
    device lacks."""
    if hardware.peak_of(model.arithmetic) is None or None in (hardware.memory_per_s, hardware.link_per_s):
        return None
    times = [_part_time(part, model, placement, hardware) for part in placement.parts]
    return max(times, key=lambda time: time.total_s)


def _part_time(part: DevicePart, model: ModelFacts, placement: Placement, hardware: Hardware) -> StepTime:
    each, number = _pass(part, model, placement, hardware), placement.num_microbatches
    gathered, reduced = gathers(part, model, placement, hardware), reductions(part, model, placement, hardware)
    sent, copied = messages(part, model, placement, hardware), dp_transfers(part, model, placement, hardware)
    bubble_s = 0.0
    if placement.pipes is not None:
        exposed_s = _seconds([*gathered, *reduced, *sent])
        pipes = placement.pipes
        bubble_s = PIPELINE_SCHEDULES[pipes.schedule].ramp_s(
            pipes.num_ranks,
            pipes.num_stages // pipes.num_ranks,
            number,
            each.forward_s,
            each.backward_s,
            each.weights_s,
        )
    elif placement.is_sharded:
        exposed_s = _time_exposed(each, number, _seconds(gathered), _seconds(reduced), len(part.nodes))
    else:
        exposed_s = max(0.0, _seconds(reduced) - each.backward_s) + _seconds(copied)
    return StepTime(
        compute_s=number * (each.forward_s + each.backward_s),
        exposed_s=exposed_s,
        bubble_s=bubble_s,
        update_s=_update_s(part, model, placement, hardware),
        transfers=(*gathered, *reduced, *sent, *copied),
    )


def _seconds(transfers: Iterable[Transfer]) -> float:
    return sum(transfer.seconds for transfer in transfers)


def _time_exposed(each: _Pass, number: int, gather_s: float, reduce_s: float, num_nodes: int) -> float:
    """Return the seconds of communication during which nothing is computed. A unit is gathered while the previous one
    computes; the first has no previous one. The reduction of gradients overlaps with the last backward, as do its
    gathers."""
    once_s = gather_s / (2 * number)
    forward_s = max(0.0, once_s - each.forward_s)
    backward_s = max(0.0, once_s - each.backward_s)
    last_s = max(0.0, once_s + reduce_s - each.backward_s)
    return number * forward_s + (number - 1) * backward_s + last_s + once_s / max(1, num_nodes)


def _pass(part: DevicePart, model: ModelFacts, placement: Placement, hardware: Hardware) -> _Pass:
    forward_s = backward_s = weights_s = 0.0
    is_plain = not placement.is_sharded and placement.pipes is None
    is_last, _ = model.images.decide("cuda", is_plain=is_plain)
    for name in part.nodes:
        node = model.nodes[name]
        ahead_s, back_s = _roofline(node.works, model, placement.rows, hardware)
        around = model.images.count_in(node.reordered, is_last=is_last) * placement.rows
        turning_s = _reordering_s(around, model, hardware)
        ahead_s, back_s = ahead_s + turning_s, back_s + 2 * turning_s
        forward_s += ahead_s
        backward_s += back_s + ahead_s * node.recomputed
        weights_s += back_s / 2
    return _Pass(forward_s, backward_s, weights_s)


def _reordering_s(elements: int, model: ModelFacts, hardware: Hardware) -> float:
    """Return the seconds to copy elements to another memory format: they are read and written once."""
    assert hardware.memory_per_s is not None
    return 2 * elements * COMPUTE_BYTES[model.precision] / (hardware.memory_per_s * MEMORY_EFFICIENCY)


def _roofline(works: Iterable[Work], model: ModelFacts, rows: int, hardware: Hardware) -> tuple[float, float]:
    """Return the seconds of forward and backward."""
    peak, bandwidth = hardware.peak_of(model.arithmetic), hardware.memory_per_s
    assert peak is not None
    assert bandwidth is not None
    width = COMPUTE_BYTES[model.precision]
    forward_s = backward_s = 0.0
    for work, times in Counter(works).items():  # the layers of a repeat are equal
        moved_s = (work.elements * rows + work.parameters) * width / (bandwidth * MEMORY_EFFICIENCY)
        forward_s += times * max(work.forward * rows / (peak * COMPUTE_EFFICIENCY), moved_s, LAUNCH_S)
        backward_s += times * max(work.backward * rows / (peak * COMPUTE_EFFICIENCY), 2 * moved_s, 2 * LAUNCH_S)
    return forward_s, backward_s


def _update_s(part: DevicePart, model: ModelFacts, placement: Placement, hardware: Hardware) -> float:
    """Return the seconds of the optimizer's update, which reads parameters, gradients and state, and writes parameters
    and state."""
    assert hardware.memory_per_s is not None
    held = model.share_of(part.nodes, placement.shards.size)
    moved = (3 * held.trained + 2 * held.state) * PARAMETER_BYTES[model.precision]
    return moved / (hardware.memory_per_s * MEMORY_EFFICIENCY) + LAUNCH_S
