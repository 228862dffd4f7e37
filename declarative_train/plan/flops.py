"""The model graph -> the floating-point operations of one sample, by torch's own way of counting (`graph/cost.py`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from declarative_train.graph.cost import Work, work_of
from declarative_train.graph.graph import Graph, Node
from declarative_train.graph.stage_graphs import open_blocks
from declarative_train.plan.plan import FlopsPlan, ParameterPlan


def plan_flops(
    graph: Graph,
    parameters: Iterable[ParameterPlan],
    units: tuple[str, ...],
    checkpointing: str,
    heads: Collection[str] = (),
) -> FlopsPlan:
    """`heads`: what losses in chunks compute once more."""
    parameters = tuple(parameters)
    opened = open_blocks(graph, units)
    works = unit_works(opened, parameters)
    every = [work for each in works.values() for work in each]
    return FlopsPlan(
        forward=sum(work.forward for work in every),
        backward=sum(work.backward for work in every),
        recomputed=sum(
            work.forward
            for node in opened.nodes
            if node.name in heads or is_recomputed(node, units, checkpointing)
            for work in works[node.name]
        ),
    )


def unit_works(opened: Graph, parameters: Iterable[ParameterPlan]) -> dict[str, tuple[Work, ...]]:
    """For each node of the model, opened down to its units: the work in it."""
    parameters = tuple(parameters)
    shapes = {item.name: item.shape for item in parameters}
    return work_of(opened, shapes, frozenset(item.name for item in parameters if item.frozen))


def is_recomputed(node: Node, units: Collection[str], checkpointing: str) -> bool:
    """Whether the node's forward runs once more in the backward, as `runtime/step/model.py` sees to."""
    if checkpointing == "all":
        return node.kind in ("layer", "block")
    return checkpointing == "blocks" and node.name in units
