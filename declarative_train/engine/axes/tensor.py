"""Tensor parallelism, the `tensor` axis: its ranks read the same rows, and each computes some features, heads or
vocabulary.

The parameters of divided layers (`Cuts`) are replaced by this rank's parts: plain tensors, so other axes can replicate
or shard them. Around a layer, its outputs and the gradients of its inputs are summed over the ranks. Undivided
parameters have the same value and gradient on all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from declarative_train.components.layers.modules.divided import TensorRanks, cut_parameters, find_cuts
from declarative_train.components.layers.modules.divided_linear import divide_linear
from declarative_train.core.cuts import NodeCut, RankCut
from declarative_train.engine.axes.gradient_sync import norm_of_parts
from declarative_train.engine.axes.replicate import sum_gradients
from declarative_train.engine.collectives import local_part
from declarative_train.graph.initialise import has_module
from declarative_train.graph.token_cuts import TokenCut

if TYPE_CHECKING:
    from declarative_train.engine.axes.gradient_sync import GradientSync
    from declarative_train.engine.collectives import MeshPosition
    from declarative_train.engine.step.model_preparation import BuiltModel
    from declarative_train.engine.step.objective import Objective
    from declarative_train.engine.step.optimizers import Optimizers
    from declarative_train.graph.cuts import Cuts
    from declarative_train.plan.plan import Plan


def divide(built: BuiltModel, cuts: Cuts, position: MeshPosition) -> None:
    """Replace the divided layers of a model on the meta device by the parts that this rank computes. `built`: the
    model, or this rank's pipeline stages. `cuts`: how the plan divides layers and parameters over ranks. `position`:
    this rank's position on the mesh."""
    ranks, model = _tensor_ranks(position), built.model
    whole = TokenCut("whole", "whole")
    for path, node in cuts.nodes.items():
        if node.kind in ("", "experts") or not has_module(model, path):  # a module of another stage
            continue
        part, tokens = model.get_submodule(path), cuts.tokens.get(path, whole)
        between = _tensor_ranks(position, tokens)
        if node.kind == "inside":
            own = {name: cut.kind for name, cut in cuts.parts[path].items() if cut.kind not in ("", "experts")}
            part.divide_parts(own, between)  # type: ignore[operator]
        elif isinstance(part, nn.Linear):
            divided = divide_linear(part, node.kind, between)
            for module in built.modules:
                if has_module(module, path):
                    module.set_submodule(path, divided)
        elif callable(begin := getattr(part, "divide", None)):  # a stage may have only its tied parameter
            begin(between)
    for path, tokens in cuts.tokens.items():
        if has_module(model, path) and not cuts.nodes.get(path, NodeCut("")).kind:
            _convert_tokens(model.get_submodule(path), tokens, ranks)
    of_experts = cuts.of_experts
    mine = {name: cut for name, cut in cuts.parameters.items() if name not in of_experts}
    cut_parameters(model, {name: RankCut(cut, ranks.index, ranks.size) for name, cut in mine.items()})


def _convert_tokens(part: nn.Module, tokens: TokenCut, ranks: TensorRanks) -> None:
    """Add hooks to a layer whose weights every rank has whole. A hook before the layer gathers the tokens of all ranks.
    A hook after it gathers the tokens, or drops those of other ranks. `tokens`: says whether the input and the output
    of the layer have all tokens or only this rank's."""
    if tokens.writes == "joined":
        part.register_forward_hook(lambda _, inputs, output: ranks.gather_tokens(output))
        return
    if tokens.reads == "tokens" and tokens.writes == "tokens":
        if not tokens.is_each:
            _convert_all(part, ranks, reads=True, writes=True)
        return
    _convert_all(part, ranks, reads=tokens.reads == "tokens", writes=tokens.writes == "tokens")


def _convert_all(part: nn.Module, ranks: TensorRanks, *, reads: bool, writes: bool) -> None:
    """Add hooks to a layer that computes with the tokens of all ranks, in a model whose other layers have only this
    rank's tokens. `reads`: whether to gather the tokens of all ranks before the layer. `writes`: whether to drop the
    tokens of other ranks after it."""
    if reads:
        part.register_forward_pre_hook(
            lambda _, inputs: tuple(
                ranks.copy_tokens(x) if isinstance(x, torch.Tensor) and x.dim() == 3 and x.is_floating_point() else x
                for x in inputs
            )
        )
    if writes:
        part.register_forward_hook(lambda _, inputs, output: ranks.own_tokens(output))


def divide_losses(objective: Objective, cuts: Cuts, position: MeshPosition) -> None:
    """Make classification losses work on divided scores: on each rank of the `tensor` axis, the loss module then
    expects the scores of this rank's classes only. Losses whose input is not divided are unchanged. `cuts`: how the
    plan divides layers, parameters and outputs over ranks. `position`: this rank's position on the mesh."""
    for term, module in zip(objective.terms, objective.modules, strict=True):
        if term.input in cuts.outputs:
            module.divide(_tensor_ranks(position))  # type: ignore[operator]


def _tensor_ranks(position: MeshPosition, tokens: TokenCut | None = None) -> TensorRanks:
    assert position.tensor is not None
    return TensorRanks(position.tensor) if tokens is None else TensorRanks(position.tensor, tokens.reads, tokens.writes)


def sync_parts(plan: Plan, sync: GradientSync, built: BuiltModel, position: MeshPosition) -> GradientSync:
    """Return the GradientSync `sync`, changed for a model that is divided over the `tensor` axis. `built`: this rank's
    part of the model. `position`: this rank's position on the mesh.

    The new `reduce` also sums the gradients of undivided parameters, of which each rank computes only a part. The new
    `norm` includes the divided parameters of all ranks, and counts every other parameter once.
    """
    cuts, group = plan.layout.cuts, position.tensor
    assert cuts is not None
    assert group is not None
    cut_names = find_cuts(built.model).keys() - cuts.of_experts

    def reduce(optimizers: Optimizers) -> None:
        sync.reduce(optimizers)
        named = dict(built.model.named_parameters())
        found = [gradient for name in cuts.summed if name in named and (gradient := named[name].grad) is not None]
        sum_gradients([local_part(gradient) for gradient in found], group)

    def norm(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        if not gradients:  # a stage may train nothing
            return sync.norm(gradients)
        named = built.model.named_parameters()
        in_parts = {id(item.grad) for name, item in named if name in cut_names and item.grad is not None}
        parts = [gradient for gradient in gradients if id(gradient) in in_parts]
        whole = [gradient for gradient in gradients if id(gradient) not in in_parts]
        return norm_of_parts(sync.norm, parts, whole, group)

    return replace(sync, reduce=reduce, norm=norm, is_replicated=False)
