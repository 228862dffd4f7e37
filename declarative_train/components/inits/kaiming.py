"""Start values that keep the variance through layers with rectifiers (He et al., 2015)."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from declarative_train.components.component import Init, Misfit
from declarative_train.components.inits.drawing import draw, fans, needs_a_matrix

if TYPE_CHECKING:
    import torch

Nonlinearity = Literal["linear", "sigmoid", "tanh", "relu", "leaky_relu", "selu"]


class KaimingUniform(Init):
    """Uniform, with standard deviation gain / sqrt(fan)."""

    type: Literal["kaiming_uniform"] = "kaiming_uniform"
    mode: Literal["fan_in", "fan_out"] = "fan_in"
    """Keep the variance of the forward (`fan_in`) or of the backward pass (`fan_out`)."""
    nonlinearity: Nonlinearity = "leaky_relu"
    """What follows the layer; decides the gain."""
    a: float = Field(default=0.0, allow_inf_nan=False)
    """Negative slope, for `leaky_relu`."""

    def check(self, shape: tuple[int, ...]) -> Misfit | None:
        return needs_a_matrix(self.type, shape)

    def fill(self, tensor: torch.Tensor, generator: torch.Generator) -> None:
        bound = sqrt(3) * _std(tensor, self.mode, self.nonlinearity, self.a)
        draw(tensor, lambda values: values.uniform_(-bound, bound, generator=generator))


class KaimingNormal(Init):
    """Normal, with standard deviation gain / sqrt(fan)."""

    type: Literal["kaiming_normal"] = "kaiming_normal"
    mode: Literal["fan_in", "fan_out"] = "fan_in"
    """Keep the variance of the forward (`fan_in`) or of the backward pass (`fan_out`)."""
    nonlinearity: Nonlinearity = "leaky_relu"
    """What follows the layer; decides the gain."""
    a: float = Field(default=0.0, allow_inf_nan=False)
    """Negative slope, for `leaky_relu`."""

    def check(self, shape: tuple[int, ...]) -> Misfit | None:
        return needs_a_matrix(self.type, shape)

    def fill(self, tensor: torch.Tensor, generator: torch.Generator) -> None:
        std = _std(tensor, self.mode, self.nonlinearity, self.a)
        draw(tensor, lambda values: values.normal_(0.0, std, generator=generator))


def _std(tensor: torch.Tensor, mode: str, nonlinearity: Nonlinearity, a: float) -> float:
    from torch import nn

    fan_in, fan_out = fans(tuple(tensor.shape))
    return nn.init.calculate_gain(nonlinearity, a) / sqrt(fan_in if mode == "fan_in" else fan_out)
