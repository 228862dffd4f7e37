"""What the training state needs on each device, by class, from shapes alone.

Parameters, gradients and optimizer state are exact up to padding. What fsdp gathers is two units at a time (the one at
work and the next), in a pipeline the whole stage, at the width of the run's precision. Activations are a bound:
everything that a node gives in one forward is counted as kept for the backward, at that width too; what torch keeps
inside of a layer besides is not counted, nor is what its kernels need for a moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from declarative_train.graph.cost import activations, num_parameters
from declarative_train.graph.cut import open_blocks
from declarative_train.graph.graph import Node
from declarative_train.plan.optimizer_state import num_state_elements
from declarative_train.plan.plan import ParameterPlan, Plan
from declarative_train.plan.text_tables import amount, columns

_ELEMENT_BYTES = {"fp32": 4, "bf16": 4, "fp16": 4, "fp64": 8}  # of parameters and what belongs to them
_ACTIVATION_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp64": 8}


def describe_memory(plan: Plan) -> list[str]:
    gathering = ["gathered"] if _num_shards(plan) > 1 else []
    head = ["", "parameters", "gradients", "optimizer", *gathering, "activations", "together"]
    rows = [[name, *(amount(cell, "B") for cell in (*cells, sum(cells)))] for name, cells in _needed(plan)]
    return columns([head, *rows])


def largest(plan: Plan) -> str:
    """What the device needs that needs the most."""
    return amount(max(sum(cells) for _, cells in _needed(plan)), "B")


def _needed(plan: Plan) -> Iterator[tuple[str, list[int]]]:
    """Bytes by class for each kind of device."""
    shards = _num_shards(plan)
    for name, held, elements in _holders(plan):
        width, narrow = _ELEMENT_BYTES[plan.training.precision], _ACTIVATION_BYTES[plan.training.precision]
        own = [item for item in held if item.tie is None]
        weights = sum(ceil(item.num_elements / shards) for item in own) * width
        gradients = sum(ceil(item.num_elements / shards) for item in own if not item.frozen) * width
        state = sum(ceil(_state(item, plan) / shards) for item in own if not item.frozen) * width
        gathered = [_gathered(plan, own) * narrow] if shards > 1 else []
        yield name, [weights, gradients, state, *gathered, elements * narrow]


def _num_shards(plan: Plan) -> int:
    """Ranks over which each parameter is spread."""
    sizes = {axis.name: axis.size for axis in plan.layout.mesh}
    if plan.layout.mode == "fsdp":
        return sizes.get("shard") or sizes["dp"]
    return sizes["dp"] if plan.layout.data_parallel == "fsdp" else 1


def _gathered(plan: Plan, held: list[ParameterPlan]) -> int:
    """Elements that are whole on a device at a time."""
    if plan.layout.pipeline is not None:
        return sum(item.num_elements for item in held)
    shapes = {item.name: item.shape for item in held}
    units = sorted(num_parameters(unit, shapes) for unit in plan.layout.units)
    rest = sum(item.num_elements for item in held) - sum(units)
    return rest + sum(units[-2:])


def _holders(plan: Plan) -> list[tuple[str, list[ParameterPlan], int]]:
    """Each kind of device: its name, the parameters of its part of the model, elements kept by the forwards."""
    opened = open_blocks(plan.graph, plan.layout.units)
    units = set(plan.layout.units)
    per_node = {node.name: _kept(node, plan, is_unit=node.name in units) for node in opened.nodes}
    rows = plan.batch.microbatch_size
    pipeline = plan.layout.pipeline
    if pipeline is None:
        return [("each device", list(plan.parameters), sum(per_node.values()) * rows)]
    found = []
    ranks = {rank.coordinates["pp"]: rank.stages for rank in plan.layout.ranks}
    for rank, stages in sorted(ranks.items()):
        names = [name for stage in stages for name in pipeline.stages[stage]]
        held = [item for item in plan.parameters if any(item.name.startswith(f"{name}.") for name in names)]
        elements = sum(
            sum(per_node[name] for name in pipeline.stages[stage]) * _in_flight(pipeline.grid[rank], stage)
            for stage in stages
        )
        found.append((f"pipeline rank {rank}", held, elements * rows))
    return found


def _kept(node: Node, plan: Plan, *, is_unit: bool) -> int:
    """Elements per sample; with activation checkpointing a unit keeps its result only."""
    mode = plan.training.activation_checkpointing
    if mode == "all" or (mode == "blocks" and is_unit):
        return sum(spec.num_elements for spec in node.outputs.values())
    return activations(node)


def _in_flight(row: tuple[str, ...], stage: int) -> int:
    """The most microbatches whose forward of a stage is done and whose backward is not."""
    most = now = 0
    for cell in row:
        for action in cell.split("+"):
            now += action.startswith(f"{stage}F")
            now -= action.startswith((f"{stage}B", f"{stage}W"))
            most = max(most, now)
    return most


def _state(item: ParameterPlan, plan: Plan) -> int:
    """Elements of the optimizer's state for one parameter, by the rule that updates it."""
    return num_state_elements(item.optimizer or plan.training.optimizer, item.shape)
