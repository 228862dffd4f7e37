"""Built-in optimizers: all are torch's except `lion`, which is implemented here."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from declarative_train.components.component import Optimizer, ShapeError

if TYPE_CHECKING:
    import torch


Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""Learning rate or weight decay: 0 or more."""
Part = Annotated[float, Field(ge=0, lt=1)]
"""Coefficient of a running average: the share that is kept at each step."""
Tiny = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""Small number that is added to a divisor."""


def _choose_fused(
    groups: Iterable[Mapping[str, Any]], *, sharded: bool = False, devices: Sequence[str] = ("cpu", "cuda", "xpu")
) -> bool | None:
    """Return True if the optimizer's fused kernel in torch supports all parameters of `groups`. Else return None, which
    lets torch choose a kernel. `sharded`: True if the fused kernel supports sharded parameters (DTensors). `devices`:
    the device types that it supports.
    """
    from torch import Tensor, nn

    def is_taken(parameter: Any) -> bool:
        is_plain = type(parameter) in (Tensor, nn.Parameter) or hasattr(parameter, "fake_mode")
        is_known = is_plain or (sharded and hasattr(parameter, "to_local"))
        return is_known and parameter.is_floating_point() and parameter.device.type in devices

    return True if all(is_taken(parameter) for group in groups for parameter in group["params"]) else None


class _Adam(Optimizer, ABC):
    """Base class of Adam and AdamW."""

    usual_lr: ClassVar[tuple[float, float]] = (1e-5, 1e-2)

    lr: Rate
    """Learning rate, before the schedule."""
    betas: tuple[Part, Part] = (0.9, 0.999)
    """Coefficients of the running averages of the gradient and of its square."""
    eps: Tiny = 1e-8
    """Added to the divisor."""
    weight_decay: Rate
    amsgrad: bool = False
    """Divide by the maximum of the averages of squares so far."""

    def build(self, groups: list[dict[str, object]]) -> torch.optim.Optimizer:
        import torch

        made = torch.optim.AdamW if self.type == "adamw" else torch.optim.Adam
        return made(groups, fused=_choose_fused(groups, sharded=True), **self.arguments())

    def num_state_elements(self, shape: tuple[int, ...]) -> int:
        return (3 if self.amsgrad else 2) * prod(shape)


class Adam(_Adam):
    """Adam. Weight decay is added to the gradient (`adamw` decays the weights directly).

    Kingma and Ba, https://arxiv.org/abs/1412.6980.
    """

    type: Literal["adam"] = "adam"
    weight_decay: Rate = 0.0
    """Multiplied by the weights and added to the gradient."""


class Adamw(_Adam):
    """Adam with decoupled weight decay: each step multiplies the weights by 1 - lr x `weight_decay`.

    Loshchilov and Hutter, https://arxiv.org/abs/1711.05101.
    """

    type: Literal["adamw"] = "adamw"
    weight_decay: Rate = 0.01
    """In each step the weights are multiplied by 1 - lr x this."""


class Sgd(Optimizer):
    """Stochastic gradient descent, with or without momentum."""

    usual_lr: ClassVar[tuple[float, float]] = (1e-3, 1.0)

    type: Literal["sgd"] = "sgd"
    lr: Rate
    """Learning rate, before the schedule."""
    momentum: Part = 0.0
    """Factor by which the sum of past gradients is multiplied in each step."""
    dampening: Rate = 0.0
    """Share of the gradient that is not added to the sum of past gradients."""
    weight_decay: Rate = 0.0
    """Multiplied by the weights and added to the gradient."""
    nesterov: bool = False
    """Nesterov momentum. Needs `momentum`, without `dampening`."""

    @model_validator(mode="after")
    def _nesterov_has_momentum(self) -> Self:
        if self.nesterov and (not self.momentum or self.dampening):
            raise ValueError("`nesterov` needs a `momentum` above 0 and no `dampening`")
        return self

    def build(self, groups: list[dict[str, object]]) -> torch.optim.Optimizer:
        import torch

        # the fused kernel fails if only some parameters have a momentum, as others got their first gradient later
        fused = None if self.momentum else _choose_fused(groups)
        return torch.optim.SGD(groups, fused=fused, **self.arguments())

    def num_state_elements(self, shape: tuple[int, ...]) -> int:
        return prod(shape) if self.momentum else 0


class Lion(Optimizer):
    """Lion: each weight moves by lr in the direction of the sign of a momentum. It needs half of Adam's memory.

    Chen et al., https://arxiv.org/abs/2302.06675, who recommend an lr 3 to 10 times smaller than adamw's, and a weight
    decay larger by the same factor. torch does not have Lion: this is dtrain's implementation.
    """

    usual_lr: ClassVar[tuple[float, float]] = (1e-6, 3e-3)

    type: Literal["lion"] = "lion"
    lr: Rate
    """Learning rate, before the schedule: the distance that each weight moves."""
    betas: tuple[Part, Part] = (0.9, 0.99)
    """Coefficients of the momentum: for the direction, and for the next step."""
    weight_decay: Rate = 0.0
    """In each step the weights are multiplied by 1 - lr x this."""

    def build(self, groups: list[dict[str, object]]) -> torch.optim.Optimizer:
        from declarative_train.components.optimizers.modules.lion import LionOptimizer

        return LionOptimizer(groups, **self.arguments())

    def num_state_elements(self, shape: tuple[int, ...]) -> int:
        return prod(shape)


class Muon(Optimizer):
    """Muon: orthogonalized momentum of matrices. Only for the weights of hidden layers.

    Jordan et al., https://kellerjordan.github.io/posts/muon/. Give another optimizer to the embedding, the last layer
    and everything that is not a matrix (`model.parameters`). Muon computes in bfloat16, so results of different
    layouts agree only to about 1e-3.
    """

    works_elementwise: ClassVar[bool] = False
    usual_lr: ClassVar[tuple[float, float]] = (1e-4, 0.1)

    type: Literal["muon"] = "muon"
    lr: Rate
    """Learning rate, before the schedule."""
    weight_decay: Rate = 0.1
    """In each step the weights are multiplied by 1 - lr x this."""
    momentum: Part = 0.95
    """Coefficient of the running average of gradients."""
    nesterov: bool = True
    """Nesterov momentum: add the gradient to the average again."""
    ns_coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315)
    """Coefficients of the Newton-Schulz iteration."""
    eps: Tiny = 1e-7
    """Smallest divisor in the normalisation of the momentum."""
    ns_steps: int = Field(5, ge=1, lt=100)
    """Number of Newton-Schulz iterations."""
    adjust_lr_fn: Literal["original", "match_rms_adamw"] | None = None
    """How the learning rate is scaled by the sizes of a matrix: `original`, or `match_rms_adamw`, with which adamw's
    lr and weight decay can be used.
    """

    def check(self, parameters: Mapping[str, tuple[int, ...]], num_shards: int = 1) -> ShapeError | None:
        others = {name: shape for name, shape in parameters.items() if len(shape) != 2}
        if not others:
            return self._check_shards(parameters, num_shards)
        name, shape = next(iter(others.items()))
        more = f", and so {'are' if len(others) > 2 else 'is'} {len(others) - 1} more" if len(others) > 1 else ""
        return ShapeError(
            f"`muon` updates matrices only, but `{name}` is {shape}{more}",
            field="type",
            help="give them another optimizer: under `model.parameters`, "
            f"`{name.rpartition('.')[2]}: {{optimizer: {{type: adamw, lr: 3e-4}}}}`",
        )

    def _check_shards(self, parameters: Mapping[str, tuple[int, ...]], num_shards: int) -> ShapeError | None:
        """Return a ShapeError if a matrix has fewer rows than there are shards, else None. Some ranks would have no
        rows of the matrix, and torch's Muon would fail. `parameters`: shapes of the matrices by name.
        """
        name = next((name for name, shape in parameters.items() if shape[0] < num_shards), None)
        if name is None:
            return None
        return ShapeError(
            f"`muon` needs a row of each matrix on every rank of fsdp, but `{name}` {parameters[name]} has fewer rows "
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
    """Adagrad: the learning rate of each weight falls with the sum of its squared gradients.

    Duchi et al., http://jmlr.org/papers/v12/duchi11a.html.
    """

    usual_lr: ClassVar[tuple[float, float]] = (1e-3, 0.1)

    type: Literal["adagrad"] = "adagrad"
    lr: Rate
    """Learning rate, before the schedule."""
    lr_decay: Rate = 0.0
    """The rate is divided by 1 + steps x this."""
    weight_decay: Rate = 0.0
    """Multiplied by the weights and added to the gradient."""
    initial_accumulator_value: Rate = 0.0
    """Initial value of the sums of squares."""
    eps: Tiny = 1e-10
    """Added to the divisor."""

    def build(self, groups: list[dict[str, object]]) -> torch.optim.Optimizer:
        import torch

        fused = _choose_fused(groups, devices=("cpu",))  # on other devices torch chooses
        return torch.optim.Adagrad(groups, fused=fused, **self.arguments())

    def num_state_elements(self, shape: tuple[int, ...]) -> int:
        return prod(shape)


class Rmsprop(Optimizer):
    """RMSprop: gradients divided by their running root mean square.

    Hinton, https://www.cs.toronto.edu/~tijmen/csc321/slides/lecture_slides_lec6.pdf.
    """

    usual_lr: ClassVar[tuple[float, float]] = (1e-5, 1e-2)

    type: Literal["rmsprop"] = "rmsprop"
    lr: Rate
    """Learning rate, before the schedule."""
    alpha: Part = 0.99
    """Coefficient of the running average of squares."""
    eps: Tiny = 1e-8
    """Added to the divisor."""
    weight_decay: Rate = 0.0
    """Multiplied by the weights and added to the gradient."""
    momentum: Part = 0.0
    """Factor by which the sum of past updates is multiplied in each step."""
    centered: bool = False
    """Divide by an estimate of the standard deviation instead."""

    def build(self, groups: list[dict[str, object]]) -> torch.optim.Optimizer:
        import torch

        return torch.optim.RMSprop(groups, **self.arguments())

    def num_state_elements(self, shape: tuple[int, ...]) -> int:
        return (1 + self.centered + (self.momentum > 0)) * prod(shape)


class Adafactor(Optimizer):
    """Adafactor: Adam with less memory. For a matrix it stores only the means of squared gradients by row and by
    column.

    The learning rate is relative to the size of the weights. On a GPU, torch's implementation makes the host wait for
    each parameter in each step. Shazeer and Stern, https://arxiv.org/abs/1804.04235, as in torch.
    """

    # torch 2.13 refuses some in-place operations on shards, and takes the norm of a shard for that of the parameter
    takes_shards: ClassVar[bool] = False
    works_elementwise: ClassVar[bool] = False

    usual_lr: ClassVar[tuple[float, float]] = (1e-4, 0.1)

    type: Literal["adafactor"] = "adafactor"
    lr: Rate
    """Largest learning rate, relative to the size of the weights, before the schedule."""
    beta2_decay: float = Field(-0.8, le=0)
    """Exponent that makes the averages of squares decay more slowly with every step."""
    eps: tuple[Tiny | None, Tiny] = (None, 1e-3)
    """Two lower bounds: of the squared gradients (null: the dtype's epsilon), and of the parameter size to which the
    learning rate is relative.
    """
    d: Annotated[float, Field(ge=1)] = 1.0
    """Updates whose root mean square is larger are scaled down to this."""
    weight_decay: Rate = 0.0
    """In each step the weights are multiplied by 1 - lr x this."""

    def build(self, groups: list[dict[str, object]]) -> torch.optim.Optimizer:
        import torch

        return torch.optim.Adafactor(groups, **self.arguments())

    def num_state_elements(self, shape: tuple[int, ...]) -> int:
        """Return the number of elements of optimizer state for a parameter of this shape. For a matrix it is the number
        of rows plus the number of columns.
        """
        return prod(shape) if len(shape) < 2 else prod(shape[:-1]) + prod(shape[:-2]) * shape[-1]
