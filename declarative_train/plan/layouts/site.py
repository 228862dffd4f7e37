"""What every way to run is placed on: the devices that the recipe names, and the table of ranks over mesh axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from declarative_train.diagnostics.diagnostic import Diagnostic
from declarative_train.graph.lower import Lowered
from declarative_train.plan.plan import LayoutPlan, MeshAxis, ParameterPlan, RankPlan
from declarative_train.recipe.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Site:
    """`num_microbatches`: of a whole optimizer step, in a pipeline; 1 elsewhere."""

    recipe: Recipe
    lowered: Lowered
    parameters: tuple[ParameterPlan, ...]
    num_microbatches: int = 1


Placer = Callable[[Site], tuple[LayoutPlan | None, list[Diagnostic]]]


def rank_table(site: Site, mesh: Sequence[MeshAxis]) -> tuple[RankPlan, ...]:
    """A rank for each device, node by node; the last axis of the mesh runs fastest, over neighbours."""
    layout = site.recipe.layout
    per_node = layout.num_gpus_per_node
    return tuple(
        RankPlan(
            rank=rank,
            node=rank // per_node,
            local_rank=rank % per_node,
            device=layout.devices[rank % per_node],
            coordinates=_coordinates(rank, mesh),
        )
        for rank in range(layout.num_gpus)
    )


def _coordinates(rank: int, mesh: Sequence[MeshAxis]) -> dict[str, int]:
    found: dict[str, int] = {}
    for axis in reversed(mesh):
        rank, found[axis.name] = divmod(rank, axis.size)
    return {axis.name: found[axis.name] for axis in mesh}
