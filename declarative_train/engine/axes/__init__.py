"""Axes of a plan's mesh, one file per axis, and the choice of the axis that combines the gradients of different
rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from declarative_train.engine.axes.gradient_sync import GradientSync

if TYPE_CHECKING:
    from declarative_train.engine.collectives import MeshPosition
    from declarative_train.engine.step.model_preparation import BuiltModel
    from declarative_train.engine.step.step_runner import StepRunner
    from declarative_train.plan.plan import Plan


def make_gradient_sync(plan: Plan, held: BuiltModel, place: MeshPosition, runner: StepRunner) -> GradientSync:
    """Return the functions by which ranks with different rows of a batch combine their gradients. `held`: this rank's
    part of the model, with its initial values; a model that will be sharded has none yet, and each rank fills its
    shards later. `place`: this rank's position on the mesh. `runner`: what runs the steps of this rank. Only the file
    of the axis that is responsible is imported."""
    sharing = _sync_rows(plan, held, place, runner)
    if plan.layout.has("expert"):
        from declarative_train.engine.axes.expert import sync_experts

        sharing = sync_experts(plan, sharing, held, place)
    if plan.layout.has("tensor"):
        from declarative_train.engine.axes.tensor import sync_parts

        sharing = sync_parts(plan, sharing, held, place)
    if plan.layout.context is not None:
        from declarative_train.engine.axes.context import sync_positions

        sharing = sync_positions(sharing, place)
    if plan.layout.pipeline is not None:
        from declarative_train.engine.axes.cross_stage_ties import sum_copies_first

        sharing = sum_copies_first(plan, sharing, held, place)
    return sharing


def _sync_rows(plan: Plan, held: BuiltModel, place: MeshPosition, runner: StepRunner) -> GradientSync:
    layout = plan.layout
    if layout.is_sharded:  # replicas of a sharded model are an axis of its own mesh
        from declarative_train.engine.axes.shard import shard

        return shard(plan, held, place, runner)
    if layout.has("expert"):
        from declarative_train.engine.axes.expert import replicate_all_but_experts

        return replicate_all_but_experts(plan, held, place, runner)
    if layout.has("replicate"):
        from declarative_train.engine.axes.replicate import replicate

        return replicate(plan, held, place, runner)
    if layout.scatters:
        from declarative_train.engine.axes.single_process_dp import scatter

        return scatter(plan, held, place, runner)
    return GradientSync(call=held.model, finish=runner.finish)
