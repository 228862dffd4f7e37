"""Rules that divide by gradients' squares: summed up (adagrad), averaged (rmsprop), by row and column (adafactor)."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from declarative_train.components.component import Optimizer
from declarative_train.components.optimizers.numbers import Part, Rate, Tiny

if TYPE_CHECKING:
    import torch


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

        from declarative_train.components.optimizers.modules.functional import runs_fused

        fused = True if runs_fused(groups, sharded=False, devices=("cpu",)) else None  # elsewhere torch's default
        return torch.optim.Adagrad(groups, fused=fused, **self.arguments())

    def num_state_elements(self, shape: tuple[int, ...]) -> int:
        return prod(shape)


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

        return torch.optim.RMSprop(groups, **self.arguments())

    def num_state_elements(self, shape: tuple[int, ...]) -> int:
        return (1 + self.centered + (self.momentum > 0)) * prod(shape)


class Adafactor(Optimizer):
    """Adafactor: Adam's squares kept as a row and a column per matrix; the rate is relative to the weights' size.

    Shazeer and Stern, https://arxiv.org/abs/1804.04235, as torch does it.
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
        from declarative_train.components.optimizers.modules.adafactor import Adafactor as Module

        return Module(groups, **self.arguments())

    def num_state_elements(self, shape: tuple[int, ...]) -> int:
        """Two vectors instead of a matrix: that is what it saves."""
        return prod(shape) if len(shape) < 2 else prod(shape[:-1]) + prod(shape[:-2]) * shape[-1]
