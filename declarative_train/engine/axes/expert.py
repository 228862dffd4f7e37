"""Expert parallelism: ranks on the axis `expert` have different rows, and each has some experts of every layer `moe`
(also of such layers in a library's model).

Each row is sent to the ranks with its experts, and the results are sent back. So the gradient of an expert is already
the sum over the axis, and is only divided by the size of the axis. If several ranks have a copy of the expert, its
gradient is averaged over them. Other parameters are whole on every rank, or sharded over `shard` and `expert`
together."""

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


def divide_experts(built: BuiltModel, cuts: Cuts, position: MeshPosition) -> None:
    """Replace the experts of a model on the meta device by the experts of this rank. `cuts`: how the plan divides
    layers and parameters over ranks. `position`: this rank's position on the mesh."""
    assert position.expert is not None
    peers, model = ExpertRanks(position.expert), built.model
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


def replicate_all_but_experts(
    plan: Plan, built: BuiltModel, position: MeshPosition, runner: StepRunner
) -> GradientSync:
    """Return the GradientSync of a model that has divided experts and is not sharded. Once per step it averages the
    gradients of experts over the copies of each expert, and all other gradients over all ranks with different rows.
    `built`: this rank's part of the model. `position`: this rank's position on the mesh. `runner`: runs forward and
    backward of a chunk (the rows of one forward)."""
    dtype, data = reduce_dtype(plan.training), position.data

    def reduce(optimizers: Optimizers) -> None:
        gradients = optimizers.gradients()
        of_experts = _gradients_of_experts(plan, built)
        own = [each for each in gradients if id(each) in of_experts]
        average_gradients([each for each in gradients if id(each) not in of_experts], data, dtype)
        if position.same_experts.size > 1:
            average_gradients(own, position.same_experts, dtype)

    return GradientSync(call=built.model, finish=runner.finish, reduce=reduce)


def sync_experts(plan: Plan, sync: GradientSync, built: BuiltModel, position: MeshPosition) -> GradientSync:
    """Return a copy of `sync` for a model whose experts are divided over the axis `expert`. Two functions in it change:

    reduce   also divides the gradients of experts by the number of ranks, because they are sums over the ranks' rows
    norm     counts the experts of all ranks, and every other parameter once"""
    group = position.expert
    assert group is not None

    def reduce(optimizers: Optimizers) -> None:
        sync.reduce(optimizers)
        of_experts = _gradients_of_experts(plan, built)
        for each in optimizers.gradients():
            if id(each) in of_experts:
                local_part(each).div_(group.size)

    def norm(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        if not gradients:
            return sync.norm(gradients)
        of_experts = _gradients_of_experts(plan, built)
        own = [each for each in gradients if id(each) in of_experts]
        others = [each for each in gradients if id(each) not in of_experts]
        return norm_of_parts(sync.norm, own, others, group)

    return replace(sync, reduce=reduce, norm=norm, is_replicated=False)


def _gradients_of_experts(plan: Plan, built: BuiltModel) -> set[int]:
    """Return the set of `id(gradient)` for the gradients of all experts' parameters."""
    assert plan.layout.cuts is not None
    names = plan.layout.cuts.of_experts
    return {id(item.grad) for name, item in built.model.named_parameters() if name in names and item.grad is not None}
