"""Sharding of a model (fsdp): which parameters are gathered together, which are freed between forward and backward, and
when gradients are reduced."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from declarative_train.graph.graph import Graph
from declarative_train.plan.layout import ShardingPlan
from declarative_train.plan.plan import ParameterPlan

# Whole float32 gradients up to this size are kept over the chunks of a step, and reduced once; larger ones are reduced
# after every chunk, so that a device never has more than its shard and a unit's. An eightieth of an H100.
KEPT_GRADIENT_BYTES = 1 << 30


def sharding_of(
    opened: Graph,
    units: tuple[str, ...],
    parameters: Iterable[ParameterPlan],
    *,
    reshard: bool | int | None,
    in_pipeline: bool,
) -> ShardingPlan | None:
    """Return the groups of parameters that fsdp gathers together; None if the mode does not shard (`reshard` is None).
    `opened`: the model's graph after `open_blocks`, in which each unit is one node.

    Each unit is a group. Without a pipeline, there is one more group for the nodes before the first unit (an
    embedding), and one for those after the last unit (norm, head). Parameters between units, and those that are tied or
    used several times, are in no group and stay gathered.
    """
    if reshard is None:
        return None
    everything = tuple(parameters)
    whole = 4 * sum(item.num_elements for item in everything if not item.frozen and item.tie is None)
    names = [node.name for node in opened.nodes]
    known = frozenset(names)
    holders = {item.name: way for item in everything for way in [_holder(item.name, known)]}
    shared = {holders[name] for item in everything if item.tie is not None for name in (item.name, item.tie)}
    shared |= {node.target for node in opened.nodes if node.target is not None and node.target not in units}
    first, last = ((), ()) if in_pipeline else _ends(names, units, set(holders.values()) - shared)
    return ShardingPlan(
        reshard=reshard,
        keeps_gradients=in_pipeline or whole <= KEPT_GRADIENT_BYTES,
        first=first,
        last=last,
        shared=tuple(name for name in names if name in shared),
    )


def _ends(
    names: Sequence[str], units: Collection[str], held: Collection[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the nodes with parameters before the first unit, and of those after the last unit. `names`:
    all nodes in order. `units`: those that are repeated blocks. `held`: those with parameters."""
    inside = [position for position, name in enumerate(names) if name in units]
    if not inside:
        return (), ()
    before, behind = names[: inside[0]], names[inside[-1] + 1 :]
    return tuple(name for name in before if name in held), tuple(name for name in behind if name in held)


def _holder(parameter: str, names: frozenset[str]) -> str:
    """Return the node that contains a parameter: of the paths in `names`, the longest one with which the parameter's
    name begins."""
    parts = parameter.split(".")
    return next(way for end in range(len(parts), 0, -1) if (way := ".".join(parts[:end])) in names)
