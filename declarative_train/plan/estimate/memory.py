"""What the training state needs on each device, by class, derived and not traced: of the candidates of `auto`, of which
there are too many to try, and where a trace cannot be made.

Parameters, gradients and optimizer state follow from shapes; sharded gradients are whole while they are gathered over
several microbatches, since they are reduced once a step. What fsdp gathers is two units at a time (the one at work and
the next), in a pipeline the whole stage. What the nodes give is counted from shapes, and set to scale by a trace of the
same model on one device (`Scale`): what layers keep inside, the widths of mixed precision and the loss are in it then.
Without a trace the loss is a bound for the usual one, over classes: its input three times in float32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from declarative_train.plan.estimate.model import COMPUTE_BYTES, PARAMETER_BYTES, ModelFacts
from declarative_train.plan.estimate.placement import Part, Placement
from declarative_train.plan.predicted import MemoryPlan


@dataclass(frozen=True, slots=True)
class Scale:
    """Of a trace on one device, in bytes. `kept` for each element that the nodes are counted to keep until their
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


def _of(part: Part, model: ModelFacts, placement: Placement, scale: Scale, has_loss: bool) -> MemoryPlan:
    """At the larger of two moments: behind the loss, when everything waits for the backward and only gradients of
    earlier microbatches are there; and at the end of the backward, when all gradients are."""
    wide, narrow = PARAMETER_BYTES[model.precision], COMPUTE_BYTES[model.precision]
    shards = placement.shards.size
    held = model.held_by(part.nodes, shards)
    accumulates = placement.num_microbatches > 1
    behind_loss = MemoryPlan(
        name=part.name,
        parameters=held.weights * wide,
        gradients=model.held_by(part.nodes).trained * wide if accumulates else 0,
        optimizer=held.state * wide,
        gathered=_gathered(part, model, placement) * narrow if shards > 1 else 0,
        activations=ceil((_kept(part, model) * scale.kept + scale.working) * placement.rows),
        loss=ceil(scale.loss * placement.rows) if has_loss else 0,
    )
    gradients = behind_loss.gradients or held.trained * wide
    at_end = replace(behind_loss, gradients=gradients, activations=ceil(scale.working * placement.rows), loss=0)
    return max(behind_loss, at_end, key=lambda memory: memory.total)


def _gathered(part: Part, model: ModelFacts, placement: Placement) -> int:
    """Elements that are whole on a device at a time."""
    everything = model.held_by(part.nodes).weights
    if placement.pipes is not None:
        return everything
    units = sorted(model.held(name, 1).weights for name in part.nodes if model.nodes[name].is_unit)
    return everything - sum(units) + sum(units[-2:])


def _kept(part: Part, model: ModelFacts) -> float:
    """Elements per sample."""
    return sum(
        sum(model.nodes[name].kept for name in stage) * number
        for stage, number in zip(part.stages, part.in_flight, strict=True)
    )
