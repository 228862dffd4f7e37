"""Adam with decoupled weight decay."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from declarative_train.components.component import Optimizer
from declarative_train.components.optimizers.numbers import Part, Rate, Tiny

if TYPE_CHECKING:
    import torch


class Adamw(Optimizer):
    """Adam with decoupled weight decay: the weights themselves decay, by lr x `weight_decay` at each step.

    Loshchilov and Hutter, https://arxiv.org/abs/1711.05101.
    """

    usual_lr: ClassVar[tuple[float, float]] = (1e-5, 1e-2)

    type: Literal["adamw"] = "adamw"
    lr: Rate
    """The learning rate, before the schedule."""
    betas: tuple[Part, Part] = (0.9, 0.999)
    """What is kept of the running averages of the gradient and of its square at each step."""
    eps: Tiny = 1e-8
    """Added to the divisor."""
    weight_decay: Rate = 0.01
    """Times lr: the part of the weights that is taken away at each step."""
    amsgrad: bool = False
    """Divide by the largest average of squares so far."""

    def build(self, groups: list[dict[str, object]]) -> torch.optim.Optimizer:
        import torch

        from declarative_train.components.optimizers.modules.fused import runs_fused

        fused = True if runs_fused(groups, sharded=True) else None
        return torch.optim.AdamW(groups, fused=fused, **self.model_dump(exclude={"type"}))

    def build_functional(self, groups: list[dict[str, object]]) -> torch.optim.Optimizer | None:
        from declarative_train.components.optimizers.modules.functional import Functional
        from declarative_train.components.optimizers.modules.fused import FusedAdam, runs_fused

        if not runs_fused(groups, sharded=False):
            return None
        return Functional(groups, FusedAdam(decoupled=True, **self.model_dump(exclude={"type"})))
