"""Optimizers of other libraries: AdamW with 8-bit state (torchao), and schedule-free AdamW (schedulefree)."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from declarative_train.components.component import Optimizer, ShapeError
from declarative_train.components.optimizers.builtin import Part, Rate, Tiny
from declarative_train.core.machine import extra_for

if TYPE_CHECKING:
    import torch


class _LibraryOptimizer(Optimizer, ABC):
    """Optimizer of the package `package`, which the extra of dtrain with the same name installs."""

    package: ClassVar[str]

    def check(self, parameters: Mapping[str, tuple[int, ...]], num_shards: int = 1) -> ShapeError | None:
        install = extra_for(self.package)
        if install is None:
            return None
        message = f"`{self.type}` needs the package {self.package}, which is not installed"
        return ShapeError(message, field="type", help=install)


class AdamwScheduleFree(_LibraryOptimizer):
    """AdamW that needs no decay of the learning rate. Gradients are computed at a point between the weights and their
    average. Evaluations, checkpoints and exports use the average.

    Defazio et al., The road less scheduled, 2024, https://arxiv.org/abs/2405.15682, by the package schedulefree (extra
    `schedulefree`). For a warm-up, set `lr_schedule: {type: constant, warmup: 5%}`. A usual lr is 1 to 10 times that of
    adamw.
    """

    package: ClassVar[str] = "schedulefree"
    averages: ClassVar[bool] = True
    usual_lr: ClassVar[tuple[float, float]] = (1e-5, 3e-2)

    type: Literal["adamw_schedule_free"] = "adamw_schedule_free"
    lr: Rate
    """Learning rate, after the warm-up."""
    betas: tuple[Annotated[float, Field(gt=0, lt=1)], Part] = (0.9, 0.999)
    """Share of the average in the point of the gradients, and coefficient of the running average of squares."""
    eps: Tiny = 1e-8
    """Added to the divisor."""
    weight_decay: Rate = 0.0
    """The weights decay by lr x this at each step, from the point of the gradients."""

    def build(self, groups: list[dict[str, object]]) -> torch.optim.Optimizer:
        from declarative_train.packs.pretrained.optimizers.modules.schedule_free import ScheduleFreeAdamw

        made = ScheduleFreeAdamw(groups, **self.arguments())
        made.train()
        return made

    def num_state_elements(self, shape: tuple[int, ...]) -> int:
        return 2 * prod(shape)


_BLOCK, _LEAST = 256, 4096  # numbers with one scale; smaller parameters have a float32 state


class Adamw8bit(_LibraryOptimizer):
    """AdamW whose two running averages have 8 bits per number. Its state needs a quarter of the memory of adamw's. Each
    block of 256 numbers has one scale factor.

    Dettmers et al., https://arxiv.org/abs/2110.02861, by the package torchao (extra `torchao`). Parameters with fewer
    than 4,096 numbers, or a number of them that is not a multiple of 256, have float32 averages. A rank needs whole
    parameters, because the end of a shard may be within a block.
    """

    package: ClassVar[str] = "torchao"
    takes_shards: ClassVar[bool] = False
    works_elementwise: ClassVar[bool] = False
    usual_lr: ClassVar[tuple[float, float]] = (1e-5, 1e-2)

    type: Literal["adamw_8bit"] = "adamw_8bit"
    lr: Rate
    """Learning rate, before the schedule."""
    betas: tuple[Part, Part] = (0.9, 0.999)
    """Coefficients of the running averages of the gradient and of its square."""
    eps: Tiny = 1e-8
    """Added to the divisor."""
    weight_decay: Rate = 0.01
    """The weights decay by lr x this at each step."""

    def build(self, groups: list[dict[str, object]]) -> torch.optim.Optimizer:
        from declarative_train.packs.pretrained.optimizers.modules.eight_bit import EightBitAdamw

        rates = [group["lr"] for group in groups]
        made = EightBitAdamw(groups, **self.arguments())
        for group, rate in zip(made.param_groups, rates, strict=True):  # the library has rounded the rates to float32
            group["lr"] = rate
        return made

    def num_state_elements(self, shape: tuple[int, ...]) -> int:
        size = prod(shape)
        return 2 * (size // 4 + size // _BLOCK) if size >= _LEAST and size % _BLOCK == 0 else 2 * size
