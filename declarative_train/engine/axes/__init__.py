"""Axes of a plan's mesh. Each axis is a kind of parallelism and has a file in this folder. This file combines the
gradient functions of the axes that a plan uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from declarative_train.engine.axes.gradient_sync import GradientSync

if TYPE_CHECKING:
    from declarative_train.engine.collectives import MeshPosition
    from declarative_train.engine.step.model_preparation import BuiltModel
    from declarative_train.engine.step.step_runner import StepRunner
    from declarative_train.plan.plan import Plan


def make_gradient_sync(plan: Plan, built: BuiltModel, position: MeshPosition, runner: StepRunner) -> GradientSync:
    """Return the functions with which this rank combines its gradients with those of other ranks. With the axis
    `shard`, this also shards the model. `built`: this rank's part of the model. `position`: this rank's position on the
    mesh. `runner`: runs forward and backward of a chunk (the rows of one forward)."""
    sync = _sync_rows(plan, built, position, runner)
    if plan.layout.has("expert"):
        from declarative_train.engine.axes.expert import sync_experts

        sync = sync_experts(plan, sync, built, position)
    if plan.layout.has("tensor"):
        from declarative_train.engine.axes.tensor import sync_parts

        sync = sync_parts(plan, sync, built, position)
    if plan.layout.context is not None:
        from declarative_train.engine.axes.context import sync_positions

        sync = sync_positions(sync, position)
    if plan.layout.pipeline is not None:
        from declarative_train.engine.axes.cross_stage_ties import sum_copies_first

        sync = sum_copies_first(plan, sync, built, position)
    return sync


def _sync_rows(plan: Plan, built: BuiltModel, position: MeshPosition, runner: StepRunner) -> GradientSync:
    layout = plan.layout
    if layout.is_sharded:  # also if there are several copies of the sharded model
        from declarative_train.engine.axes.shard import shard

        return shard(plan, built, position, runner)
    if layout.has("expert"):
        from declarative_train.engine.axes.expert import replicate_all_but_experts

        return replicate_all_but_experts(plan, built, position, runner)
    if layout.has("replicate"):
        from declarative_train.engine.axes.replicate import replicate

        return replicate(plan, built, position, runner)
    if layout.scatters:
        from declarative_train.engine.axes.single_process_dp import make_replicas

        return make_replicas(plan, built, position, runner)
    return GradientSync(call=built.model, finish=runner.finish)
