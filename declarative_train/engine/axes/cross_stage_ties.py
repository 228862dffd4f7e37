"""Parameters that several pipeline stages use. Stages on the same rank share one tensor. Stages on different ranks have
copies, whose gradients are summed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import distributed, nn

from declarative_train.engine.axes.gradient_sync import GradientSync
from declarative_train.engine.collectives import local_part

if TYPE_CHECKING:
    from declarative_train.engine.collectives import MeshPosition
    from declarative_train.engine.step.model_preparation import BuiltModel
    from declarative_train.engine.step.optimizers import Optimizers
    from declarative_train.plan.layout import SharedParameter
    from declarative_train.plan.plan import Plan


def get_shared(plan: Plan) -> tuple[SharedParameter, ...]:
    return () if plan.layout.pipeline is None else plan.layout.pipeline.shared


def share_tensors(stages: Sequence[nn.Module], names: Sequence[str]) -> None:
    """Make the parameters `names` use one common tensor in all `stages`, the modules of the pipeline stages on this
    rank."""
    for name in names:
        held = [stage for stage in stages if name in dict(stage.named_parameters(remove_duplicate=False))]
        for stage in held[1:]:
            copy = stage.get_parameter(name)
            for part in stage.modules():
                for attribute, tensor in part._parameters.items():
                    if tensor is copy:
                        part._parameters[attribute] = held[0].get_parameter(name)


class SharedParameters:
    """Parameters with copies on several pipeline stages. The copies stay equal, because each gets the sum of their
    gradients.

    The rank of the first stage adds up the gradients and sends the sum to the others, so that all get bitwise equal
    sums, as in Megatron-LM (Narayanan et al., Efficient large-scale language model training on GPU clusters, 2021)."""

    def __init__(self, plan: Plan, model: nn.Module, position: MeshPosition) -> None:
        assert position.pipeline is not None
        self._model, self._me, self._group = model, position.world.rank, position.pipeline.group
        self._members: dict[str, tuple[int, ...]] = {}  # global ranks with a copy; in the norm, the first one counts
        self._parameters: dict[str, nn.Parameter] = {}
        mine = plan.layout.ranks[self._me]
        line = [
            row
            for row in plan.layout.ranks
            if _other_coordinates(row.coordinates) == _other_coordinates(mine.coordinates)
        ]
        for item in get_shared(plan):
            holders = [row.rank for row in line if set(row.stages) & set(item.stages)]
            first = next(row.rank for row in line if item.stages[0] in row.stages)
            if self._me in holders and len(holders) > 1:
                self._members[item.name] = (first, *(rank for rank in holders if rank != first))

    def add_up(self) -> None:
        """Replace the gradient of each copy by the sum over all copies. Call this after the last backward, before
        gradients are averaged and clipped."""
        for name, members in self._members.items():
            parameter = self._parameters_by_name()[name]
            if not parameter.requires_grad:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradient = local_part(parameter.grad)
            whole = gradient.contiguous()
            self._sum(whole, *members)
            if whole is not gradient:
                gradient.copy_(whole)

    def _sum(self, tensor: torch.Tensor, first: int, *others: int) -> None:
        """Sum a tensor over the ranks `first` and `others`, in place; all of them must call this. Rank `first` receives
        and adds the tensors of the others, then sends them the sum. (Two ranks that both receive before they send would
        deadlock on a GPU.)"""
        if self._me != first:
            distributed.send(tensor, first, group=self._group)
            distributed.recv(tensor, first, group=self._group)
            return
        part = torch.empty_like(tensor)
        for rank in others:
            distributed.recv(part, rank, group=self._group)
            tensor += part
        for rank in others:
            distributed.send(tensor, rank, group=self._group)

    def without_copies(self, gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return those of this rank's `gradients` from which the global gradient norm is computed. If several stages
        have copies of a parameter, only the first of them uses its gradient."""
        named = self._parameters_by_name()
        elsewhere = {id(named[name].grad) for name, (first, *_) in self._members.items() if first != self._me}
        return [gradient for gradient in gradients if id(gradient) not in elsewhere]

    def _parameters_by_name(self) -> dict[str, nn.Parameter]:
        """Return the model's parameters by name. They are looked up at the first call, because sharding and allocation
        replace them after the constructor has run."""
        if not self._parameters:
            self._parameters = dict(self._model.named_parameters())
        return self._parameters


def _other_coordinates(coordinates: Mapping[str, int]) -> dict[str, int]:
    """Return the mesh coordinates of a rank, except the coordinate on the pipeline axis."""
    return {axis: place for axis, place in coordinates.items() if axis != "pipeline"}


def sum_copies_first(plan: Plan, sync: GradientSync, built: BuiltModel, position: MeshPosition) -> GradientSync:
    """Return a GradientSync like `sync`, whose `reduce` first sums the gradients of parameters with copies on several
    stages. Its `norm` counts each of these parameters once. `built`: the stages on this rank. `position`: this rank's
    position on the mesh."""
    if not get_shared(plan):
        return sync
    shared = SharedParameters(plan, built.model, position)

    def reduce(optimizers: Optimizers) -> None:
        shared.add_up()
        sync.reduce(optimizers)

    return replace(sync, reduce=reduce, norm=lambda gradients: sync.norm(shared.without_copies(gradients)))
