"""RMSprop."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from declarative_train.components.component import Optimizer
from declarative_train.components.optimizers.numbers import Part, Rate, Tiny

if TYPE_CHECKING:
    import torch


class Rmsprop(Optimizer):
    """RMSprop: gradients divided by a running root mean square of theirs.

    Hinton, https://www.cs.toronto.edu/~tijmen/csc321/slides/lecture_slides_lec6.pdf.
    """

    usual_lr: ClassVar[tuple[float, float]] = (1e-5, 1e-2)

    type: Literal["rmsprop"] = "rmsprop"
    lr: Rate
    """The learning rate, before the schedule."""
    alpha: Part = 0.99
    """What is kept of the running average of squares at each step."""
    eps: Tiny = 1e-8
    """Added to the divisor."""
    weight_decay: Rate = 0.0
    """Times the weights, added to the gradient."""
    momentum: Part = 0.0
    """What is kept of the sum of past updates at each step."""
    centered: bool = False
    """Divide by an estimate of the standard deviation instead."""

    def build(self, groups: list[dict[str, object]]) -> torch.optim.Optimizer:
        import torch

        return torch.optim.RMSprop(groups, **self.model_dump(exclude={"type"}))

    def build_functional(self, groups: list[dict[str, object]]) -> torch.optim.Optimizer | None:
        from declarative_train.components.optimizers.modules.functional import Functional
        from declarative_train.components.optimizers.modules.stepwise import StepwiseRmsprop

        return Functional(groups, StepwiseRmsprop(**self.model_dump(exclude={"type"})))
