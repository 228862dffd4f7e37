"""Layout of a run: the mesh, the devices of the ranks, the division of the model, and the pipeline stages."""

from __future__ import annotations

from dataclasses import replace

from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.data.spec import BatchSpec
from declarative_train.graph.lower import Lowered
from declarative_train.graph.partition import open_blocks
from declarative_train.plan.context import divide_positions
from declarative_train.plan.layout import LayoutPlan
from declarative_train.plan.model_cuts import divide_model
from declarative_train.plan.plan import ParameterPlan
from declarative_train.plan.sharding import sharding_of
from declarative_train.plan.stages import PlacementInput, pipeline_of
from declarative_train.recipe.recipe import Recipe


def assign_ranks(
    recipe: Recipe, lowered: Lowered, parameters: tuple[ParameterPlan, ...], batch: BatchSpec
) -> tuple[LayoutPlan | None, list[Diagnostic]]:
    """Return how the ranks divide the model and the batch, and diagnostics. The layout is None if the recipe's
    `parallelism` cannot divide this model.

    The schedule of a pipeline covers a whole optimizer step: each microbatch of each accumulation step is a microbatch
    of the schedule. So gradients are reduced only once per step, and ranks are idle for less time.
    """
    layout, mode = recipe.layout, recipe.mode
    mesh = mode.mesh(layout.num_gpus)
    assert mesh is not None, "P001 comes first"
    plan = LayoutPlan(
        mode=mode.mode,
        device=layout.device,
        num_nodes=layout.num_nodes,
        gpus_per_node=layout.num_gpus_per_node,
        mesh=mesh,
        rank_devices=layout.devices,
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
    plan_or_none, diagnostics = divide_positions(plan, recipe, lowered)
    if plan_or_none is None:
        return None, diagnostics
    plan = plan_or_none
    if mode.pipeline is None:
        return divide_model(plan, recipe, lowered, parameters)
    number = batch.accumulation * batch.num_microbatches
    pipeline, diagnostics = pipeline_of(PlacementInput(recipe, lowered, parameters, number), mode.pipeline, plan)
    if pipeline is None:
        return None, diagnostics
    plan, found = divide_model(replace(plan, pipeline=pipeline), recipe, lowered, parameters)
    return plan, [*diagnostics, *found]
