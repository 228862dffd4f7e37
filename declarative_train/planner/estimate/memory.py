"""Memory of a step on each device, by category, estimated from shapes. It is used for the candidates of `auto`, which
are too many to trace, and for plans that cannot be traced.

Parameters, gradients, optimizer state and receive buffers follow from shapes and the mode. Activations are counted from
shapes, and scaled by a trace of the same model (`MemoryScale`). Without a trace, the loss is assumed to be a cross
entropy: three times the bytes of its input in float32, of which a third is kept until the backward.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil

from declarative_train.plan.plan import Plan
from declarative_train.plan.predictions import MemoryPlan
from declarative_train.planner.estimate.model import COMPUTE_BYTES, PARAMETER_BYTES, REDUCE_BYTES, ModelFacts
from declarative_train.planner.estimate.placement import DevicePart, Placement


@dataclass(frozen=True, slots=True)
class MemoryScale:
    """Numbers from which the memory of activations is computed. They are usually measured in a trace of the model.

    kept      bytes for each tensor element that a node saves in the forward for its backward
    working   bytes per sample for all other activations at the peak
    loss      bytes per sample for computing the loss
    """

    kept: float
    working: float
    loss: float


def memory_of(model: ModelFacts, placement: Placement, scale: MemoryScale | None = None) -> list[MemoryPlan]:
    """Return the estimated memory of one device for each pipeline rank. Without a pipeline, the list has one entry,
    which holds for every device. `scale`: measured sizes of activations; None if the model was not traced."""
    last = len(placement.parts) - 1 if placement.loss_part is None else placement.loss_part
    scale = scale or scale_from_shapes(model)
    return [_memory_of_part(part, model, placement, scale, at == last) for at, part in enumerate(placement.parts)]


def scale_from_shapes(model: ModelFacts) -> MemoryScale:
    """Return the MemoryScale of a model that was not traced, computed from shapes and dtypes."""
    width = COMPUTE_BYTES[model.precision]
    working = max((node.passing for node in model.nodes.values()), default=0) * width
    return MemoryScale(width, working, 3 * max(4, width) * model.judged)


def largest_bytes(model: ModelFacts, placement: Placement, scale: MemoryScale | None = None) -> int:
    """Return the estimated memory, in bytes, of the device that needs most."""
    return max(each.total for each in memory_of(model, placement, scale))


def least_bytes(model: ModelFacts, placement: Placement) -> int:
    """Return a lower bound for the memory of a step, in bytes, on the device that needs most. It is the memory of
    parameters, gradients and optimizer state, which all exist at the beginning of the update."""
    wide, shards = PARAMETER_BYTES[model.precision], placement.shards.size
    held = [model.share_of(part.nodes, shards) for part in placement.parts]
    return max((each.weights + each.trained + each.state) * wide + each.packed for each in held)


def bytes_of_copies(plan: Plan, model: ModelFacts) -> int:
    """Return the bytes of the half-precision copies of parameters that forward and backward read. With fsdp there are
    none."""
    return 0 if plan.layout.is_sharded else _bytes_of_copies(model, model.nodes)


def _bytes_of_copies(model: ModelFacts, nodes: Iterable[str]) -> int:
    narrow = COMPUTE_BYTES[model.precision]
    return model.share_of(nodes).weights * narrow if narrow < PARAMETER_BYTES[model.precision] else 0


def _memory_of_part(
    part: DevicePart, model: ModelFacts, placement: Placement, scale: MemoryScale, has_loss: bool
) -> MemoryPlan:
    """Return the peak memory of a device that has the part `part` of the model. The peak is at one of two moments.
    After the loss, all activations wait for the backward, and gradients of earlier microbatches exist. At the end of
    the backward, all gradients exist. `has_loss`: the device computes the loss."""
    wide, is_sharded = PARAMETER_BYTES[model.precision], placement.is_sharded
    held, whole = model.share_of(part.nodes, placement.shards.size), model.share_of(part.nodes)
    copies = 0 if is_sharded else _bytes_of_copies(model, part.nodes)
    keeps_whole = placement.sharding is not None and placement.sharding.keeps_gradients
    # buckets of ddp are kept from step to step
    in_buckets = not (is_sharded or placement.scatters or placement.pipes) and placement.replicas.size > 1
    gradients = whole.trained * wide if keeps_whole and placement.num_microbatches > 1 else held.trained * wide
    gathered, reduced = _count_gathered(part, model, placement), _count_reduced(part, model, placement)
    waiting, rows = max(1.0, sum(part.in_flight) / len(part.stages)), placement.rows
    is_begun = in_buckets or placement.num_microbatches > (1 if placement.pipes is None else waiting)
    steady = copies + _count_received(part, placement)
    waits = (waiting - 1) * min(scale.loss, max(4, COMPUTE_BYTES[model.precision]) * model.judged)
    behind_loss = MemoryPlan(
        name=part.name,
        parameters=held.weights * wide + held.packed,
        gradients=gradients if is_begun else 0,
        optimizer=held.state * wide,
        gathered=gathered,
        activations=steady + ceil((_count_kept(part, model) * scale.kept + scale.working) * rows),
        loss=ceil((scale.loss + waits) * rows) if has_loss else 0,
    )
    working = ceil(scale.working * rows)
    at_end = replace(
        behind_loss, gradients=gradients, gathered=gathered + reduced, activations=steady + working, loss=0
    )
    return max(behind_loss, at_end, key=lambda memory: memory.total)


def _count_gathered(part: DevicePart, model: ModelFacts, placement: Placement) -> int:
    """Return the largest number of bytes of gathered parameters that exist at one time."""
    if not placement.is_sharded:
        return 0
    narrow = COMPUTE_BYTES[model.precision]
    held = model.share_of(part.nodes)
    everything = held.weights * narrow + held.packed
    reshard = True if placement.sharding is None else placement.sharding.reshard
    if placement.pipes is not None or reshard is False:
        return everything
    units = sorted(
        each.weights * narrow + each.packed for each in (model.share(name, 1) for name in _unit_names(part, model))
    )
    at_work = everything - sum(units) + sum(units[-2:])
    kept = 0 if reshard is True else sum(units[:-2]) // reshard
    return at_work + kept


def _count_received(part: DevicePart, placement: Placement) -> int:
    """Return the bytes of the buffers that receive values from other stages, for all microbatches of a step."""
    if placement.pipes is None:
        return 0
    wires = placement.pipes.wires
    ahead = sum(wires[number - 1].forward for number in part.numbers if number)
    back = sum(wires[number].backward for number in part.numbers if number < len(wires))
    return round((ahead + back) * placement.rows * placement.num_microbatches)


def _count_reduced(part: DevicePart, model: ModelFacts, placement: Placement) -> int:
    """Return the bytes of the gradients that fsdp reduces at one time: those of the largest unit, in the dtype of the
    reduction. The result is 0 without fsdp."""
    units = _count_per_unit(part, model)
    return units[-1] * REDUCE_BYTES[model.reduce] if placement.is_sharded and units else 0


def _count_per_unit(part: DevicePart, model: ModelFacts) -> list[int]:
    """Return the number of parameter elements in each unit (repeated block) of a device's part of the model, in
    ascending order."""
    return sorted(model.share(name, 1).weights for name in _unit_names(part, model))


def _unit_names(part: DevicePart, model: ModelFacts) -> list[str]:
    return [name for name in part.nodes if model.nodes[name].is_unit]


def _count_kept(part: DevicePart, model: ModelFacts) -> float:
    """Return how many elements per sample the device stores for later backwards, at the moment when most microbatches
    are in flight (after their forward, before their backward)."""
    return sum(
        sum(model.nodes[name].kept for name in stage) * number
        for stage, number in zip(part.stages, part.in_flight, strict=True)
    )
