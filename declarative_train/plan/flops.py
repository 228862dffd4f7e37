"""Floating-point operations of a model per sample, counted as torch counts them (`graph/cost.py`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from declarative_train.graph.cost import Work, work_of
from declarative_train.graph.graph import Graph
from declarative_train.graph.partition import open_blocks
from declarative_train.plan.plan import ParameterPlan
from declarative_train.plan.predictions import FlopsPlan
from declarative_train.plan.recomputation import Recomputation


def plan_flops(
    graph: Graph,
    parameters: Iterable[ParameterPlan],
    units: tuple[str, ...],
    recomputation: Recomputation,
    heads: Collection[str] = (),
) -> FlopsPlan:
    """Return three numbers of operations for one sample: of the forward, of the backward, and of what the backward
    computes again because of checkpointing.

    `units`: paths of the blocks of the model; `recomputation` decides which of them are computed again. `heads`: nodes
    whose forward is always computed again, because their loss is computed in chunks.
    """
    parameters = tuple(parameters)
    opened = open_blocks(graph, units)
    works, again = unit_works(opened, parameters), recomputation.units(units)
    every = [work for each in works.values() for work in each]
    return FlopsPlan(
        forward=sum(work.forward for work in every),
        backward=sum(work.backward for work in every),
        recomputed=sum(
            round(work.forward * (1.0 if node.name in heads else recomputation.part_of(node, again)))
            for node in opened.nodes
            for work in works[node.name]
        ),
    )


def mean_flops(parts: Iterable[tuple[float, FlopsPlan]]) -> FlopsPlan:
    """Return the mean operations per sample. `parts`: for each length of the samples, (share of the samples, operations
    for one of them)."""
    pairs = list(parts)
    if len(pairs) == 1:
        return pairs[0][1]
    return FlopsPlan(
        *(
            round(sum(share * getattr(each, name) for share, each in pairs))
            for name in ("forward", "backward", "recomputed")
        )
    )


def unit_works(opened: Graph, parameters: Iterable[ParameterPlan]) -> dict[str, tuple[Work, ...]]:
    """Return {node: arithmetic and memory traffic}, with one `Work` (graph/cost.py) for each layer and expression in
    the node. `opened`: the graph of the model after `open_blocks`."""
    parameters = tuple(parameters)
    shapes = {item.name: item.shape for item in parameters}
    return work_of(opened, shapes, frozenset(item.name for item in parameters if item.frozen))
