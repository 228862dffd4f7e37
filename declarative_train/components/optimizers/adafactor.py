"""Adafactor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from declarative_train.components.component import Optimizer
from declarative_train.components.optimizers.numbers import Rate, Tiny

if TYPE_CHECKING:
    import torch


class Adafactor(Optimizer):
    """Adafactor: Adam's squares kept as a row and a column per matrix; the rate is relative to the weights' size.

    Shazeer and Stern, https://arxiv.org/abs/1804.04235, as torch does it. Norms of a parameter are read by the host in
    every step.
    """

    # torch 2.13: "in-place operations that require placement changes are not supported", and the norm of a shard is
    # taken for that of the parameter
    takes_shards: ClassVar[bool] = False

    usual_lr: ClassVar[tuple[float, float]] = (1e-4, 0.1)

    type: Literal["adafactor"] = "adafactor"
    lr: Rate
    """The largest relative rate, before the schedule."""
    beta2_decay: float = Field(-0.8, le=0)
    """The exponent with which the averages of squares come to keep more."""
    eps: tuple[Tiny | None, Tiny] = (None, 1e-3)
    """Least square (null: the dtype's epsilon), and least size of a parameter that the rate is relative to."""
    d: Annotated[float, Field(ge=1)] = 1.0
    """Updates whose root mean square is larger are cut to it."""
    weight_decay: Rate = 0.0
    """Times lr: the part of the weights that is taken away at each step."""

    def build(self, groups: list[dict[str, object]]) -> torch.optim.Optimizer:
        import torch

        return torch.optim.Adafactor(groups, **self.model_dump(exclude={"type"}))

    def build_functional(self, groups: list[dict[str, object]]) -> torch.optim.Optimizer | None:
        from declarative_train.components.optimizers.modules.functional import Functional
        from declarative_train.components.optimizers.modules.stepwise import StepwiseAdafactor

        return Functional(groups, StepwiseAdafactor(**self.model_dump(exclude={"type"})))
