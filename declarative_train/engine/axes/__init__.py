"""What the axes of a plan's mesh do to a model, an axis a file, and the choice of the one that shares out a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from declarative_train.engine.axes.gradient_sync import Sharing
from declarative_train.graph.build import direct

if TYPE_CHECKING:
    from declarative_train.engine.collectives import Place
    from declarative_train.engine.step.model import Held
    from declarative_train.engine.step.step_runner import StepRunner
    from declarative_train.plan.plan import Plan


def share(plan: Plan, held: Held, place: Place, runner: StepRunner) -> Sharing:
    """How those who take different rows of a batch make one step of it. Only the file in question is imported.

    `held.model` has its start values already, unless it is sharded: no rank holds that one whole.
    """
    if plan.layout.pipeline is not None:
        from declarative_train.engine.axes.cross_stage_ties import with_shared

        return with_shared(plan, _shared_rows(plan, held, place, runner), held, place)
    return _shared_rows(plan, held, place, runner)


def _shared_rows(plan: Plan, held: Held, place: Place, runner: StepRunner) -> Sharing:
    layout = plan.layout
    if layout.is_sharded:  # replicas of a sharded model are an axis of its own mesh
        from declarative_train.engine.axes.shard import shard

        return shard(plan, held, place, runner)
    if layout.has("replicate"):
        from declarative_train.engine.axes.replicate import replicate

        return replicate(plan, held, place, runner)
    if layout.scatters:
        from declarative_train.engine.axes.single_process_dp import scatter

        return scatter(plan, held, place, runner)
    call = direct(held.graph_module) if layout.pipeline is None else held.model
    return Sharing(call=call, finish=runner.finish)
