"""Expert parallelism, the `expert` axis: ranks with different rows, each of which has part of the experts of every
mixture.

A layer `moe`, or the mixture in a library's model, sends each row to the ranks of the row's experts and receives the
results (`ExpertRanks`). So the gradients of an expert include the rows of all ranks of the axis. They are averaged only
over the ranks with a copy of the same expert, and divided by the number of all ranks with different rows, as all
gradients are. Other parameters are whole on every rank, or sharded over `shard` and `expert` together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from declarative_train.components.layers.modules.divided import cut_parameters
from declarative_train.components.layers.modules.expert_ranks import ExpertRanks
from declarative_train.core.cuts import RankCut
from declarative_train.engine.axes.gradient_sync import GradientSync, norm_of_parts
from declarative_train.engine.axes.replicate import average_gradients
from declarative_train.engine.collectives import local_part
from declarative_train.engine.step.precision import reduce_dtype
from declarative_train.graph.initialise import has_module

if TYPE_CHECKING:
    from declarative_train.engine.collectives import MeshPosition
    from declarative_train.engine.step.model_preparation import BuiltModel
    from declarative_train.engine.step.optimizers import Optimizers
    from declarative_train.engine.step.step_runner import StepRunner
    from declarative_train.graph.cuts import Cuts
    from declarative_train.plan.plan import Plan


def divide_experts(held: BuiltModel, cuts: Cuts, place: MeshPosition) -> None:
    """Replace the experts of a model on the meta device by the experts of this rank. `cuts`: the plan's division of the
    model. `place`: this rank's position on the mesh.
    """
    assert place.expert is not None
    peers, model = ExpertRanks(place.expert), held.model
    for path, node in cuts.nodes.items():
        if not has_module(model, path):
            continue
        part: Any = model.get_submodule(path)
        if node.kind == "experts":
            part.divide_experts(peers)
        elif node.kind == "inside":
            part.divide_experts([name for name, cut in cuts.parts[path].items() if cut.kind == "experts"], peers)
    own = {name: RankCut(cuts.parameters[name], peers.index, peers.size) for name in cuts.of_experts}
    cut_parameters(model, own)


def replicate_all_but_experts(plan: Plan, held: BuiltModel, place: MeshPosition, runner: StepRunner) -> GradientSync:
    """Return the GradientSync for a model with divided experts that is not sharded. Once a step, in buckets, it
    averages the gradients of experts over their copies, and all other gradients over all ranks with different rows."""
    dtype, data = reduce_dtype(plan.training), place.data

    def reduce(optimizers: Optimizers) -> None:
        gradients = optimizers.gradients()
        of_experts = _gradients_of_experts(plan, held)
        own = [each for each in gradients if id(each) in of_experts]
        average_gradients([each for each in gradients if id(each) not in of_experts], data, dtype)
        if place.same_experts.size > 1:
            average_gradients(own, place.same_experts, dtype)

    return GradientSync(call=held.model, finish=runner.finish, reduce=reduce)


def sync_experts(plan: Plan, sharing: GradientSync, held: BuiltModel, place: MeshPosition) -> GradientSync:
    """Return a GradientSync that does what `sharing` does, and also divides the gradients of experts: `sharing`
    averages them only over the copies of the same expert, so they are divided by the number of the remaining ranks. The
    norm counts the experts of all ranks, and all other parameters once."""
    group = place.expert
    assert group is not None

    def reduce(optimizers: Optimizers) -> None:
        sharing.reduce(optimizers)
        of_experts = _gradients_of_experts(plan, held)
        for each in optimizers.gradients():
            if id(each) in of_experts:
                local_part(each).div_(group.size)

    def norm(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        if not gradients:
            return sharing.norm(gradients)
        of_experts = _gradients_of_experts(plan, held)
        own = [each for each in gradients if id(each) in of_experts]
        others = [each for each in gradients if id(each) not in of_experts]
        return norm_of_parts(sharing.norm, own, others, group)

    return replace(sharing, reduce=reduce, norm=norm, is_replicated=False)


def _gradients_of_experts(plan: Plan, held: BuiltModel) -> set[int]:
    """Return the ids of the gradient tensors of the experts' parameters."""
    assert plan.layout.cuts is not None
    names = plan.layout.cuts.of_experts
    return {id(item.grad) for name, item in held.model.named_parameters() if name in names and item.grad is not None}
