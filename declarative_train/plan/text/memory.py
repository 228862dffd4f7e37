"""The memory of a plan's devices as text: see `plan/estimate/memory.py` for what is counted."""

from __future__ import annotations

from declarative_train.plan.estimate.memory import Memory, largest_bytes, memory_of
from declarative_train.plan.estimate.model import facts_of
from declarative_train.plan.estimate.placement import Placement, placement_of
from declarative_train.plan.plan import Plan
from declarative_train.plan.text.tables import columns
from declarative_train.terms.amounts import amount


def describe_memory(plan: Plan) -> list[str]:
    placement = _placement(plan)
    gathering = ["gathered"] if placement.is_sharded else []
    head = ["", "parameters", "gradients", "optimizer", *gathering, "activations", "together"]
    rows = [_row(each, placement) for each in memory_of(facts_of(plan), placement)]
    return columns([head, *rows])


def largest(plan: Plan) -> str:
    """What the device needs that needs the most."""
    return amount(largest_bytes(facts_of(plan), _placement(plan)), "B")


def _placement(plan: Plan) -> Placement:
    return placement_of(plan.layout, plan.batch, tuple(facts_of(plan).nodes))


def _row(each: Memory, placement: Placement) -> list[str]:
    gathered = [each.gathered] if placement.is_sharded else []
    cells = [each.parameters, each.gradients, each.optimizer, *gathered, each.activations, each.total]
    return [each.name, *(amount(cell, "B") for cell in cells)]
