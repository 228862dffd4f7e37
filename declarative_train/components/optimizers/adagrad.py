"""Adagrad."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from declarative_train.components.component import Optimizer
from declarative_train.components.optimizers.numbers import Rate, Tiny

if TYPE_CHECKING:
    import torch

FUSED_DEVICES = ("cpu",)  # elsewhere torch's default: several operations over all parameters


class Adagrad(Optimizer):
    """Adagrad: each weight's rate falls with the sum of its squared gradients.

    Duchi et al., http://jmlr.org/papers/v12/duchi11a.html.
    """

    usual_lr: ClassVar[tuple[float, float]] = (1e-3, 0.1)

    type: Literal["adagrad"] = "adagrad"
    lr: Rate
    """The learning rate, before the schedule."""
    lr_decay: Rate = 0.0
    """The rate is divided by 1 + steps x this."""
    weight_decay: Rate = 0.0
    """Times the weights, added to the gradient."""
    initial_accumulator_value: Rate = 0.0
    """Where the sums of squares start."""
    eps: Tiny = 1e-10
    """Added to the divisor."""

    def build(self, groups: list[dict[str, object]]) -> torch.optim.Optimizer:
        import torch

        from declarative_train.components.optimizers.modules.fused import runs_fused

        fused = True if runs_fused(groups, sharded=False, devices=FUSED_DEVICES) else None
        return torch.optim.Adagrad(groups, fused=fused, **self.model_dump(exclude={"type"}))

    def build_functional(self, groups: list[dict[str, object]]) -> torch.optim.Optimizer | None:
        from declarative_train.components.optimizers.modules.functional import Functional
        from declarative_train.components.optimizers.modules.fused import FusedAdagrad, runs_fused

        if not runs_fused(groups, sharded=False, devices=FUSED_DEVICES):
            return None
        return Functional(groups, FusedAdagrad(**self.model_dump(exclude={"type"})))
