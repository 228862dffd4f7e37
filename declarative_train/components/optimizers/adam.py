"""Adam, and Adam with decoupled weight decay."""

from __future__ import annotations

from abc import ABC
from math import prod
from typing import TYPE_CHECKING, ClassVar, Literal

from declarative_train.components.component import Optimizer
from declarative_train.components.optimizers.numbers import Part, Rate, Tiny

if TYPE_CHECKING:
    import torch


class _Adam(Optimizer, ABC):
    """What the two have in common."""

    usual_lr: ClassVar[tuple[float, float]] = (1e-5, 1e-2)

    lr: Rate
    """The learning rate, before the schedule."""
    betas: tuple[Part, Part] = (0.9, 0.999)
    """What is kept of the running averages of the gradient and of its square at each step."""
    eps: Tiny = 1e-8
    """Added to the divisor."""
    weight_decay: Rate
    amsgrad: bool = False
    """Divide by the largest average of squares so far."""

    def build(self, groups: list[dict[str, object]]) -> torch.optim.Optimizer:
        import torch

        from declarative_train.components.optimizers.modules.functional import runs_fused

        fused = True if runs_fused(groups, sharded=True) else None
        made = torch.optim.AdamW if self.type == "adamw" else torch.optim.Adam
        return made(groups, fused=fused, **self.arguments())

    def build_functional(self, groups: list[dict[str, object]]) -> torch.optim.Optimizer | None:
        from declarative_train.components.optimizers.modules.functional import FusedAdam, runs_fused

        if not runs_fused(groups, sharded=False):
            return None
        return FusedAdam(groups, decoupled=self.type == "adamw", **self.arguments())

    def num_state_elements(self, shape: tuple[int, ...]) -> int:
        return (3 if self.amsgrad else 2) * prod(shape)


class Adam(_Adam):
    """Adam; its weight decay is added to the gradient (`adamw` decays the weights themselves).

    Kingma and Ba, https://arxiv.org/abs/1412.6980.
    """

    type: Literal["adam"] = "adam"
    weight_decay: Rate = 0.0
    """Times the weights, added to the gradient."""


class Adamw(_Adam):
    """Adam with decoupled weight decay: the weights themselves decay, by lr x `weight_decay` at each step.

    Loshchilov and Hutter, https://arxiv.org/abs/1711.05101.
    """

    type: Literal["adamw"] = "adamw"
    weight_decay: Rate = 0.01
    """Times lr: the part of the weights that is taken away at each step."""
