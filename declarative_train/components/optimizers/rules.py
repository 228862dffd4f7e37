"""Update rules."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from declarative_train.components.component import Optimizer, ShapeError

if TYPE_CHECKING:
    import torch


Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""A learning rate, a weight decay: 0 or more."""
Part = Annotated[float, Field(ge=0, lt=1)]
"""What is kept of a running average at each step."""
Tiny = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""What is added to a divisor."""


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

        if not runs_fused(groups, sharded=True):
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

        return FusedSgd(groups, **self.arguments()) if runs_fused(groups, sharded=True) else None

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
        from declarative_train.components.optimizers.modules.lion import LionOptimizer

        return LionOptimizer(groups, **self.arguments())

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

    def check(self, parameters: Mapping[str, tuple[int, ...]], num_shards: int = 1) -> ShapeError | None:
        others = {name: shape for name, shape in parameters.items() if len(shape) != 2}
        if not others:
            return self._check_shards(parameters, num_shards)
        name, shape = next(iter(others.items()))
        more = f", as {'are' if len(others) > 2 else 'is'} {len(others) - 1} more" if len(others) > 1 else ""
        return ShapeError(
            f"`muon` updates matrices only, but `{name}` is {shape}{more}",
            field="type",
            help="give them another optimizer: under `model.parameters`, "
            f"`{name.rpartition('.')[2]}: {{optimizer: {{type: adamw, lr: 3e-4}}}}`",
        )

    def _check_shards(self, parameters: Mapping[str, tuple[int, ...]], num_shards: int) -> ShapeError | None:
        """torch multiplies the shards of a matrix, and stops where a rank has none of its rows."""
        name = next((name for name, shape in parameters.items() if shape[0] < num_shards), None)
        if name is None:
            return None
        return ShapeError(
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
        from declarative_train.components.optimizers.modules.adafactor import AdafactorOptimizer

        return AdafactorOptimizer(groups, **self.arguments())

    def num_state_elements(self, shape: tuple[int, ...]) -> int:
        """Two vectors instead of a matrix: that is what it saves."""
        return prod(shape) if len(shape) < 2 else prod(shape[:-1]) + prod(shape[:-2]) * shape[-1]
