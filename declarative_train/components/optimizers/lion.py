"""Lion."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from declarative_train.components.component import Optimizer
from declarative_train.components.optimizers.numbers import Part, Rate

if TYPE_CHECKING:
    import torch


class Lion(Optimizer):
    """Lion: every weight moves by lr, in the direction of a momentum's sign; half of Adam's memory.

    Chen et al., https://arxiv.org/abs/2302.06675, who advise a 3 to 10 times smaller lr than adamw's, and as many times
    its weight decay. torch has none: this one is ours.
    """

    usual_lr: ClassVar[tuple[float, float]] = (1e-6, 3e-3)

    type: Literal["lion"] = "lion"
    lr: Rate
    """The learning rate, before the schedule: how far every weight moves."""
    betas: tuple[Part, Part] = (0.9, 0.99)
    """What is kept of the momentum for the direction, and for the next step."""
    weight_decay: Rate = 0.0
    """Times lr: the part of the weights that is taken away at each step."""

    def build(self, groups: list[dict[str, object]]) -> torch.optim.Optimizer:
        from declarative_train.components.optimizers.modules import lion

        return lion.Lion(groups, **self.model_dump(exclude={"type"}))

    def build_functional(self, groups: list[dict[str, object]]) -> torch.optim.Optimizer | None:
        from declarative_train.components.optimizers.modules.functional import Functional
        from declarative_train.components.optimizers.modules.lion import StepwiseLion

        return Functional(groups, StepwiseLion(**self.model_dump(exclude={"type"})))
