"""Rules of one momentum: gradient descent, the momentum's sign (lion), the momentum made orthogonal (muon)."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from declarative_train.components.component import Misfit, Optimizer
from declarative_train.components.optimizers.numbers import Part, Rate, Tiny

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

        from declarative_train.components.optimizers.modules.functional import runs_fused

        fused = True if runs_fused(groups, sharded=False) else None
        return torch.optim.SGD(groups, fused=fused, **self.arguments())

    def build_functional(self, groups: list[dict[str, object]]) -> torch.optim.Optimizer | None:
        from declarative_train.components.optimizers.modules.functional import FusedSgd, runs_fused

        return FusedSgd(groups, **self.arguments()) if runs_fused(groups, sharded=False) else None

    def num_state_elements(self, shape: tuple[int, ...]) -> int:
        return prod(shape) if self.momentum else 0


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
        from declarative_train.components.optimizers.modules.lion import Lion as Module

        return Module(groups, **self.arguments())

    def num_state_elements(self, shape: tuple[int, ...]) -> int:
        return prod(shape)


class Muon(Optimizer):
    """Muon: momentum of matrices, made orthogonal. For the weights of hidden layers only.

    Jordan et al., https://kellerjordan.github.io/posts/muon/. Give all that is not a matrix, and the embedding and the
    last layer, another optimizer by `model.parameters`. Computes in bfloat16, so that another layout gives numbers
    equal to about 1e-3 only.
    """

    usual_lr: ClassVar[tuple[float, float]] = (1e-4, 0.1)

    type: Literal["muon"] = "muon"
    lr: Rate
    """The learning rate, before the schedule."""
    weight_decay: Rate = 0.1
    """Times lr: the part of the weights that is taken away at each step."""
    momentum: Part = 0.95
    """What is kept of the running average of gradients at each step."""
    nesterov: bool = True
    """Look ahead: mix the gradient in once more."""
    ns_coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315)
    """Of the Newton-Schulz iteration."""
    eps: Tiny = 1e-7
    """Least norm that is divided by."""
    ns_steps: int = Field(5, ge=1, lt=100)
    """Newton-Schulz iterations."""
    adjust_lr_fn: Literal["original", "match_rms_adamw"] | None = None
    """How the rate goes with a matrix's sides: `original`, or `match_rms_adamw`, which takes adamw's lr and decay."""

    def check(self, parameters: Mapping[str, tuple[int, ...]], num_shards: int = 1) -> Misfit | None:
        others = {name: shape for name, shape in parameters.items() if len(shape) != 2}
        if not others:
            return self._misfit_of_shards(parameters, num_shards)
        name, shape = next(iter(others.items()))
        more = f", as {'are' if len(others) > 2 else 'is'} {len(others) - 1} more" if len(others) > 1 else ""
        return Misfit(
            f"`muon` updates matrices only, but `{name}` is {shape}{more}",
            field="type",
            help="give them another optimizer: under `model.parameters`, "
            f"`{name.rpartition('.')[2]}: {{optimizer: {{type: adamw, lr: 3e-4}}}}`",
        )

    def _misfit_of_shards(self, parameters: Mapping[str, tuple[int, ...]], num_shards: int) -> Misfit | None:
        """torch multiplies the shards of a matrix, and stops where a rank has none of its rows."""
        name = next((name for name, shape in parameters.items() if shape[0] < num_shards), None)
        if name is None:
            return None
        return Misfit(
            f"`muon` needs a row of each matrix on every rank of fsdp, and `{name}` {parameters[name]} has fewer rows "
            f"than the {num_shards} ranks",
            field="type",
            help="give it another optimizer: under `model.parameters`, "
            f"`{name}: {{optimizer: {{type: adamw, lr: 3e-4}}}}`",
        )

    def build(self, groups: list[dict[str, object]]) -> torch.optim.Optimizer:
        import torch

        return torch.optim.Muon(groups, **self.arguments())

    def num_state_elements(self, shape: tuple[int, ...]) -> int:
        return prod(shape)
