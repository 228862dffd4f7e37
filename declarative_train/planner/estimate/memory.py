"""What the training state needs on each device, by class, derived and not traced: of the candidates of `auto`, of which
there are too many to try, and where a trace cannot be made.

Parameters, gradients and optimizer state follow from shapes. Of fsdp's gradients a device has its shards, or whole ones
where they are kept over several microbatches and reduced once a step. What fsdp gathers is two units at a time (the one
at work and the next), in a pipeline the whole stage; everywhere else forward and backward read copies of the parameters
in half precision. What the nodes give is counted from shapes, and set to scale by a trace of the same model (`Scale`):
what layers keep inside, the widths of mixed precision and the loss are in it then. Without a trace the loss is a bound
for the usual one, over classes: its input three times in float32, once of which waits for its backward. A rank of a
pipeline has room for all that it receives in a step, as torch's stages take it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil

from declarative_train.plan.plan import Plan
from declarative_train.plan.predicted import MemoryPlan
from declarative_train.planner.estimate.model import COMPUTE_BYTES, PARAMETER_BYTES, REDUCE_BYTES, ModelFacts
from declarative_train.planner.estimate.placement import Part, Placement
from declarative_train.planner.estimate.traffic import BUCKET_BYTES


@dataclass(frozen=True, slots=True)
class Scale:
    """Of a trace, in bytes. `kept` for each element that the nodes are counted to keep until their
    backward; for each row what is worked on besides at the peak, and what the loss holds."""

    kept: float
    working: float
    loss: float


def memory_of(model: ModelFacts, placement: Placement, scale: Scale | None = None) -> list[MemoryPlan]:
    last = len(placement.parts) - 1 if placement.loss_part is None else placement.loss_part
    scale = scale or untraced(model)
    return [_of(part, model, placement, scale, at == last) for at, part in enumerate(placement.parts)]


def untraced(model: ModelFacts) -> Scale:
    width = COMPUTE_BYTES[model.precision]
    working = max((node.passing for node in model.nodes.values()), default=0) * width
    return Scale(width, working, 3 * max(4, width) * model.judged)


def largest_bytes(model: ModelFacts, placement: Placement, scale: Scale | None = None) -> int:
    """Of the device that needs the most."""
    return max(each.total for each in memory_of(model, placement, scale))


def least_bytes(model: ModelFacts, placement: Placement) -> int:
    """What each update begins with, and so no step can do with less: of the device that needs the most."""
    wide, shards = PARAMETER_BYTES[model.precision], placement.shards.size
    held = [model.held_by(part.nodes, shards) for part in placement.parts]
    return max((each.weights + each.trained + each.state) * wide + each.packed for each in held)


def copied_bytes(plan: Plan, model: ModelFacts) -> int:
    """Of the copies in half precision that a plan's forward and backward read."""
    return 0 if plan.layout.is_sharded else _copied(model, model.nodes)


def _copied(model: ModelFacts, nodes: Iterable[str]) -> int:
    narrow = COMPUTE_BYTES[model.precision]
    return model.held_by(nodes).weights * narrow if narrow < PARAMETER_BYTES[model.precision] else 0


def _of(part: Part, model: ModelFacts, placement: Placement, scale: Scale, has_loss: bool) -> MemoryPlan:
    """At the larger of two moments: behind the loss, when everything waits for the backward and only gradients of
    earlier microbatches are there; and at the end of the backward, when all gradients are."""
    wide, is_sharded = PARAMETER_BYTES[model.precision], placement.is_sharded
    held, whole = model.held_by(part.nodes, placement.shards.size), model.held_by(part.nodes)
    copies = 0 if is_sharded else _copied(model, part.nodes)
    keeps_whole = placement.sharding is not None and placement.sharding.keeps_gradients
    averages = not (is_sharded or placement.scatters or placement.pipes) and placement.replicas.size > 1
    in_buckets = averages and held.trained * wide > BUCKET_BYTES  # which stay from step to step
    gradients = whole.trained * wide if keeps_whole and placement.num_microbatches > 1 else held.trained * wide
    gathered, reduced = _gathered(part, model, placement), _reduced(part, model, placement)
    waiting, rows = max(1.0, sum(part.in_flight) / len(part.stages)), placement.rows
    is_begun = in_buckets or placement.num_microbatches > (1 if placement.pipes is None else waiting)
    steady = copies + _received(part, placement)
    waits = (waiting - 1) * min(scale.loss, max(4, COMPUTE_BYTES[model.precision]) * model.judged)
    behind_loss = MemoryPlan(
        name=part.name,
        parameters=held.weights * wide + held.packed,
        gradients=gradients if is_begun else 0,
        optimizer=held.state * wide,
        gathered=gathered,
        activations=steady + ceil((_kept(part, model) * scale.kept + scale.working) * rows),
        loss=ceil((scale.loss + waits) * rows) if has_loss else 0,
    )
    working = ceil(scale.working * rows)
    at_end = replace(
        behind_loss, gradients=gradients, gathered=gathered + reduced, activations=steady + working, loss=0
    )
    return max(behind_loss, at_end, key=lambda memory: memory.total)


def _gathered(part: Part, model: ModelFacts, placement: Placement) -> int:
    """What is whole on a device at a time."""
    if not placement.is_sharded:
        return 0
    narrow = COMPUTE_BYTES[model.precision]
    held = model.held_by(part.nodes)
    everything = held.weights * narrow + held.packed
    reshard = True if placement.sharding is None else placement.sharding.reshard
    if placement.pipes is not None or reshard is False:
        return everything
    units = sorted(
        each.weights * narrow + each.packed for each in (model.held(name, 1) for name in _unit_names(part, model))
    )
    at_work = everything - sum(units) + sum(units[-2:])
    kept = 0 if reshard is True else sum(units[:-2]) // reshard
    return at_work + kept


def _received(part: Part, placement: Placement) -> int:
    """What comes from other stages, of all microbatches."""
    if placement.pipes is None:
        return 0
    wires = placement.pipes.wires
    ahead = sum(wires[number - 1].forward for number in part.numbers if number)
    back = sum(wires[number].backward for number in part.numbers if number < len(wires))
    return (ahead + back) * placement.rows * placement.num_microbatches


def _reduced(part: Part, model: ModelFacts, placement: Placement) -> int:
    """The largest unit's gradients on their way to their shards, in the dtype that they travel in."""
    units = _units(part, model)
    return units[-1] * REDUCE_BYTES[model.reduce] if placement.is_sharded and units else 0


def _units(part: Part, model: ModelFacts) -> list[int]:
    """Elements of each, the largest last."""
    return sorted(model.held(name, 1).weights for name in _unit_names(part, model))


def _unit_names(part: Part, model: ModelFacts) -> list[str]:
    return [name for name in part.nodes if model.nodes[name].is_unit]


def _kept(part: Part, model: ModelFacts) -> float:
    """Elements per sample."""
    return sum(
        sum(model.nodes[name].kept for name in stage) * number
        for stage, number in zip(part.stages, part.in_flight, strict=True)
    )
