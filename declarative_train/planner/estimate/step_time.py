"""How long an optimizer step takes: a roofline per layer, the links, and the bubble of a pipeline.

A layer takes as long as its products at a part of the peak, or as its traffic with the memory, whichever is longer, and
never less than starting it does (Williams, Waterman and Patterson, Roofline, 2009). Communication hides behind the
backward (ddp), or behind the forward and backward (fsdp), as far as these last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from declarative_train.components.hardware.hardware import Hardware
from declarative_train.components.pipeline_schedules import PIPELINE_SCHEDULES
from declarative_train.graph.cost import Work
from declarative_train.planner.estimate.model import COMPUTE_BYTES, PARAMETER_BYTES, ModelFacts
from declarative_train.planner.estimate.placement import Part, Placement
from declarative_train.planner.estimate.traffic import Transfer, gathers, messages, reductions, scattered

# Of the peak, in large products. All told, PaLM 540B computed at 0.58 of it on TPUs, recomputation counted (Chowdhery
# et al., 2022), Llama 3 405B at 0.38 to 0.43 on H100 (Llama team, 2024, table 4).
COMPUTE_EFFICIENCY = 0.5
MEMORY_EFFICIENCY = 0.8
LAUNCH_S = 10e-6  # to start one layer: Python and a few kernels


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one optimizer step, of the slowest device: computing, waiting for others (what is not hidden), idle
    while a pipeline fills and empties, updating."""

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
    """Seconds for one microbatch. `backward_s` has the second forward of what is computed again in it."""

    forward_s: float
    backward_s: float
    weights_s: float


def step_time(model: ModelFacts, placement: Placement, hardware: Hardware) -> StepTime | None:
    """None where a figure is missing: of a CPU, or of a precision that the device does not have."""
    if hardware.peak_of(model.arithmetic) is None or None in (hardware.memory_per_s, hardware.link_per_s):
        return None
    times = [_part_time(part, model, placement, hardware) for part in placement.parts]
    return max(times, key=lambda time: time.total_s)


def _part_time(part: Part, model: ModelFacts, placement: Placement, hardware: Hardware) -> StepTime:
    each, number = _pass(part, model, placement, hardware), placement.num_microbatches
    gathered, reduced = gathers(part, model, placement, hardware), reductions(part, model, placement, hardware)
    sent, copied = messages(part, model, placement, hardware), scattered(part, model, placement, hardware)
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
        exposed_s = _beside_the_passes(each, number, _seconds(gathered), _seconds(reduced), len(part.nodes))
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


def _beside_the_passes(each: _Pass, number: int, gather_s: float, reduce_s: float, num_nodes: int) -> float:
    """A unit is gathered while the one before it is at work; the first has none before it. The reduction shares
    the last backward with the gathering."""
    once_s = gather_s / (2 * number)
    forward_s = max(0.0, once_s - each.forward_s)
    backward_s = max(0.0, once_s - each.backward_s)
    last_s = max(0.0, once_s + reduce_s - each.backward_s)
    return number * forward_s + (number - 1) * backward_s + last_s + once_s / max(1, num_nodes)


def _pass(part: Part, model: ModelFacts, placement: Placement, hardware: Hardware) -> _Pass:
    forward_s = backward_s = weights_s = 0.0
    is_plain = not placement.is_sharded and placement.pipes is None
    is_last, _ = model.images.decide("cuda", is_plain=is_plain)
    for name in part.nodes:
        node = model.nodes[name]
        ahead_s, back_s = _roofline(node.works, model, placement.rows, hardware)
        around = model.images.count_in(node.reordered, is_last=is_last) * placement.rows
        turning_s = _turning_s(around, model, hardware)
        ahead_s, back_s = ahead_s + turning_s, back_s + 2 * turning_s
        forward_s += ahead_s
        backward_s += back_s + ahead_s * node.recomputed
        weights_s += back_s / 2
    return _Pass(forward_s, backward_s, weights_s)


def _turning_s(elements: int, model: ModelFacts, hardware: Hardware) -> float:
    """Seconds for what is written once more in another order: read and written."""
    assert hardware.memory_per_s is not None
    return 2 * elements * COMPUTE_BYTES[model.precision] / (hardware.memory_per_s * MEMORY_EFFICIENCY)


def _roofline(works: Iterable[Work], model: ModelFacts, rows: int, hardware: Hardware) -> tuple[float, float]:
    """Seconds forward and backward."""
    peak, bandwidth = hardware.peak_of(model.arithmetic), hardware.memory_per_s
    assert peak is not None
    assert bandwidth is not None
    width = COMPUTE_BYTES[model.precision]
    forward_s = backward_s = 0.0
    for work, times in Counter(works).items():  # the layers of a repeat are alike
        moved_s = (work.elements * rows + work.parameters) * width / (bandwidth * MEMORY_EFFICIENCY)
        forward_s += times * max(work.forward * rows / (peak * COMPUTE_EFFICIENCY), moved_s, LAUNCH_S)
        backward_s += times * max(work.backward * rows / (peak * COMPUTE_EFFICIENCY), 2 * moved_s, 2 * LAUNCH_S)
    return forward_s, backward_s


def _update_s(part: Part, model: ModelFacts, placement: Placement, hardware: Hardware) -> float:
    """The optimizer reads parameters, gradients and its state, and writes the first and the last."""
    assert hardware.memory_per_s is not None
    held = model.held_by(part.nodes, placement.shards.size)
    moved = (3 * held.trained + 2 * held.state) * PARAMETER_BYTES[model.precision]
    return moved / (hardware.memory_per_s * MEMORY_EFFICIENCY) + LAUNCH_S
