"""What the training state needs on each device, by class, from shapes alone.

Parameters, gradients and optimizer state are exact up to padding; sharded gradients are whole while they are gathered
over several microbatches, since they are reduced once a step. What fsdp gathers is two units at a time (the one at work
and the next), in a pipeline the whole stage, at the width of the run's precision. Activations are a bound: everything
that a node gives in one forward is counted as kept for the backward, at that width too (of what is computed again: its
result, and the inside of the largest such node); what torch keeps inside of a layer besides is not counted, nor is what
its kernels need for a moment.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from declarative_train.plan.estimate.model import COMPUTE_BYTES, PARAMETER_BYTES, ModelFacts
from declarative_train.plan.estimate.placement import Part, Placement


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on one kind of device."""

    name: str
    parameters: int
    gradients: int
    optimizer: int
    gathered: int
    activations: int

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.optimizer + self.gathered + self.activations


def memory_of(model: ModelFacts, placement: Placement) -> list[Memory]:
    return [_of(part, model, placement) for part in placement.parts]


def largest_bytes(model: ModelFacts, placement: Placement) -> int:
    """Of the device that needs the most."""
    return max(each.total for each in memory_of(model, placement))


def _of(part: Part, model: ModelFacts, placement: Placement) -> Memory:
    wide, narrow = PARAMETER_BYTES[model.precision], COMPUTE_BYTES[model.precision]
    shards = placement.shards.size
    held = model.held_by(part.nodes, shards)
    trained = model.held_by(part.nodes).trained if placement.num_microbatches > 1 else held.trained
    return Memory(
        name=part.name,
        parameters=held.weights * wide,
        gradients=trained * wide,
        optimizer=held.state * wide,
        gathered=_gathered(part, model, placement) * narrow if shards > 1 else 0,
        activations=ceil(_activations(part, model) * placement.rows) * narrow,
    )


def _gathered(part: Part, model: ModelFacts, placement: Placement) -> int:
    """Elements that are whole on a device at a time."""
    everything = model.held_by(part.nodes).weights
    if placement.pipes is not None:
        return everything
    units = sorted(model.held(name, 1).weights for name in part.nodes if model.nodes[name].is_unit)
    return everything - sum(units) + sum(units[-2:])


def _activations(part: Part, model: ModelFacts) -> float:
    """Elements per sample."""
    kept = sum(
        sum(model.nodes[name].kept for name in stage) * number
        for stage, number in zip(part.stages, part.in_flight, strict=True)
    )
    return kept + max((model.nodes[name].passing for name in part.nodes), default=0)
