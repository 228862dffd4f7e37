"""Parameters that several stages of a pipeline hold: one tensor on a rank, gradients added up between ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import distributed, nn

from declarative_train.engine.axes.gradient_sync import Sharing

if TYPE_CHECKING:
    from declarative_train.engine.collectives import Place
    from declarative_train.engine.step.model import Held
    from declarative_train.engine.step.optimizers import Optimizers
    from declarative_train.engine.step.step_runner import Sums
    from declarative_train.plan.layout import SharedParameter
    from declarative_train.plan.plan import Plan


def shared_of(plan: Plan) -> tuple[SharedParameter, ...]:
    return () if plan.layout.pipeline is None else plan.layout.pipeline.shared


def hold_once(stages: Sequence[nn.Module], names: Sequence[str]) -> None:
    """What several stages of this rank share is one tensor."""
    for name in names:
        held = [stage for stage in stages if name in dict(stage.named_parameters(remove_duplicate=False))]
        for stage in held[1:]:
            copy = stage.get_parameter(name)
            for part in stage.modules():
                for attribute, tensor in part._parameters.items():
                    if tensor is copy:
                        part._parameters[attribute] = held[0].get_parameter(name)


class SharedParameters:
    """The copies of parameters that several stages hold: their gradients become the sum of all, so that every rank
    makes the same step. As in Megatron-LM, whose first and last stage do so for the embedding's weights (Narayanan et
    al., Efficient large-scale language model training on GPU clusters, 2021); which parameters and ranks is the plan's
    matter.

    The rank that counts a parameter adds up and sends the sum back: to the bit the same everywhere, in the group that
    the stages have anyway.
    """

    def __init__(self, plan: Plan, model: nn.Module, place: Place) -> None:
        assert place.pipeline is not None
        self._model, self._me, self._group = model, place.world.rank, place.pipeline.group
        self._members: dict[str, tuple[int, ...]] = {}  # global ranks; the first one counts the parameter
        self._parameters: dict[str, nn.Parameter] = {}
        mine = plan.layout.ranks[self._me]
        line = [row for row in plan.layout.ranks if _beside(row.coordinates) == _beside(mine.coordinates)]
        for item in shared_of(plan):
            holders = [row.rank for row in line if set(row.stages) & set(item.stages)]
            first = next(row.rank for row in line if item.stages[0] in row.stages)
            if self._me in holders and len(holders) > 1:
                self._members[item.name] = (first, *(rank for rank in holders if rank != first))

    def add_up(self) -> None:
        """After the last backward, before anything is averaged, clipped or updated."""
        for name, members in self._members.items():
            parameter = self._named()[name]
            if not parameter.requires_grad:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradient = getattr(parameter.grad, "_local_tensor", parameter.grad)
            whole = gradient.contiguous()
            self._sum(whole, *members)
            if whole is not gradient:
                gradient.copy_(whole)

    def _sum(self, tensor: torch.Tensor, first: int, *others: int) -> None:
        """In place, one way after the other: two ranks that both received first would wait for each other on a GPU."""
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

    def counted(self, gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Without the copies that another stage counts."""
        named = self._named()
        elsewhere = {id(named[name].grad) for name, (first, *_) in self._members.items() if first != self._me}
        return [gradient for gradient in gradients if id(gradient) not in elsewhere]

    def _named(self) -> dict[str, nn.Parameter]:
        """Asked for late: sharding, and memory for it, put other objects in their place."""
        if not self._parameters:
            self._parameters = dict(self._model.named_parameters())
        return self._parameters


def _beside(coordinates: Mapping[str, int]) -> dict[str, int]:
    """Where a rank stands besides the pipeline."""
    return {axis: place for axis, place in coordinates.items() if axis != "pipeline"}


def with_shared(plan: Plan, sharing: Sharing, held: Held, place: Place) -> Sharing:
    """The same, with the gradients of shared parameters added up over the stages first."""
    if not shared_of(plan):
        return sharing
    shared = SharedParameters(plan, held.model, place)

    def reduce(optimizers: Optimizers, sums: Sums) -> tuple[Sums, bool]:
        shared.add_up()
        return sharing.reduce(optimizers, sums)

    return replace(sharing, reduce=reduce, norm=lambda gradients: sharing.norm(shared.counted(gradients)))
