"""Stochastic gradient descent."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import model_validator

from declarative_train.components.component import Optimizer
from declarative_train.components.optimizers.numbers import Part, Rate

if TYPE_CHECKING:
    import torch


class Sgd(Optimizer):
    """Stochastic gradient descent, with momentum or without."""

    usual_lr: ClassVar[tuple[float, float]] = (1e-3, 1.0)

    type: Literal["sgd"] = "sgd"
    lr: Rate
    """The learning rate, before the schedule."""
    momentum: Part = 0.0
    """What is kept of the sum of past gradients at each step."""
    dampening: Rate = 0.0
    """What is taken from the gradient as it is added to that sum."""
    weight_decay: Rate = 0.0
    """Times the weights, added to the gradient."""
    nesterov: bool = False
    """Look ahead: add the momentum once more. Needs `momentum`, without `dampening`."""

    @model_validator(mode="after")
    def _nesterov_has_momentum(self) -> Self:
        if self.nesterov and (not self.momentum or self.dampening):
            raise ValueError("`nesterov` needs a `momentum` above 0 and no `dampening`")
        return self

    def build(self, groups: list[dict[str, object]]) -> torch.optim.Optimizer:
        import torch

        from declarative_train.components.optimizers.modules.fused import runs_fused

        fused = True if runs_fused(groups, sharded=False) else None
        return torch.optim.SGD(groups, fused=fused, **self.model_dump(exclude={"type"}))

    def build_functional(self, groups: list[dict[str, object]]) -> torch.optim.Optimizer | None:
        from declarative_train.components.optimizers.modules.functional import Functional
        from declarative_train.components.optimizers.modules.fused import FusedSgd, runs_fused

        if not runs_fused(groups, sharded=False):
            return None
        return Functional(groups, FusedSgd(**self.model_dump(exclude={"type"})))
