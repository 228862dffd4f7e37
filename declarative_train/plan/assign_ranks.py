"""Layout of a run: the mesh of the recipe's mode, one row per rank with its node and device, and pipeline stages."""

from __future__ import annotations

from dataclasses import replace

from declarative_train.components.pipeline_schedules import PIPELINE_SCHEDULES
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.mesh import Mesh
from declarative_train.data.spec import BatchSpec
from declarative_train.graph.lower import Lowered
from declarative_train.graph.partition import open_blocks
from declarative_train.plan.layout import LayoutPlan, RankPlan
from declarative_train.plan.model_cuts import divide_model
from declarative_train.plan.plan import ParameterPlan
from declarative_train.plan.sharding import sharding_of
from declarative_train.plan.stages import PlacementInput, pipeline_of
from declarative_train.recipe.recipe import Recipe
from declarative_train.recipe.sections.layout import Layout


def assign_ranks(
    recipe: Recipe, lowered: Lowered, parameters: tuple[ParameterPlan, ...], batch: BatchSpec
) -> tuple[LayoutPlan | None, list[Diagnostic]]:
    """Return the layout of the plan, or None and errors if the model cannot be cut into pipeline stages. In a pipeline,
    gradient accumulation becomes more microbatches of one schedule: one reduction, and less idle time."""
    layout, mode = recipe.layout, recipe.mode
    mesh = mode.mesh(layout.num_gpus)
    assert mesh is not None, "P001 comes first"
    plan = LayoutPlan(
        mode=mode.mode,
        device=layout.device,
        num_nodes=layout.num_nodes,
        gpus_per_node=layout.num_gpus_per_node,
        mesh=mesh,
        ranks=rank_table(layout, mesh),
        units=lowered.units,
    )
    if mode.in_one_process:
        copies = mode.data_parallel_size(layout.num_gpus)
        devices = layout.devices if mode.scatters else ()
        per_node = layout.num_gpus_per_node if mode.scatters else 1
        return replace(plan, num_nodes=1, gpus_per_node=per_node, num_copies=copies, devices=devices), []
    opened, in_pipeline = open_blocks(lowered.graph, lowered.units), plan.has("pipeline")
    sharding = sharding_of(opened, lowered.units, parameters, reshard=mode.reshard, in_pipeline=in_pipeline)
    plan = replace(plan, sharding=sharding)
    if mode.pipeline is None:
        return divide_model(plan, recipe, lowered, parameters)
    number = batch.accumulation * batch.num_microbatches
    pipeline, diagnostics = pipeline_of(PlacementInput(recipe, lowered, parameters, number), mode.pipeline, plan)
    if pipeline is None:
        return None, diagnostics
    schedule, num_ranks = PIPELINE_SCHEDULES[mode.pipeline.schedule], plan.size("pipeline")
    ranks = tuple(
        replace(rank, stages=schedule.stages_of(rank.coordinates["pipeline"], num_ranks, pipeline.num_stages))
        for rank in plan.ranks
    )
    plan, found = divide_model(replace(plan, pipeline=pipeline, ranks=ranks), recipe, lowered, parameters)
    return plan, [*diagnostics, *found]


def rank_table(layout: Layout, mesh: Mesh) -> tuple[RankPlan, ...]:
    """Return one RankPlan per device, node by node; a single one if there is no mesh. Neighbouring ranks differ in the
    last axis of the mesh."""
    per_node = layout.num_gpus_per_node
    return tuple(
        RankPlan(
            rank=rank,
            node=rank // per_node,
            local_rank=rank % per_node,
            device=layout.devices[rank % per_node],
            coordinates=coordinates(rank, mesh),
        )
        for rank in range(layout.num_gpus if mesh else 1)
    )


def coordinates(rank: int, mesh: Mesh) -> dict[str, int]:
    """Return the coordinates of a rank by mesh axis."""
    found: dict[str, int] = {}
    for axis in reversed(mesh):
        rank, found[axis.name] = divmod(rank, axis.size)
    return {axis.name: found[axis.name] for axis in mesh}
