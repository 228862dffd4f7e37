"""Start values that keep the variance through layers in both directions (Glorot and Bengio, 2010)."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from declarative_train.components.component import Init, Misfit
from declarative_train.components.inits.drawing import draw, fans, needs_a_matrix

if TYPE_CHECKING:
    import torch


class XavierUniform(Init):
    """Uniform, with variance 2 / (fan in + fan out)."""

    type: Literal["xavier_uniform"] = "xavier_uniform"
    gain: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Factor on the standard deviation."""

    def check(self, shape: tuple[int, ...]) -> Misfit | None:
        return needs_a_matrix(self.type, shape)

    def fill(self, tensor: torch.Tensor, generator: torch.Generator) -> None:
        bound = self.gain * sqrt(6 / sum(fans(tuple(tensor.shape))))
        draw(tensor, lambda values: values.uniform_(-bound, bound, generator=generator))


class XavierNormal(Init):
    """Normal, with variance 2 / (fan in + fan out)."""

    type: Literal["xavier_normal"] = "xavier_normal"
    gain: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Factor on the standard deviation."""

    def check(self, shape: tuple[int, ...]) -> Misfit | None:
        return needs_a_matrix(self.type, shape)

    def fill(self, tensor: torch.Tensor, generator: torch.Generator) -> None:
        std = self.gain * sqrt(2 / sum(fans(tuple(tensor.shape))))
        draw(tensor, lambda values: values.normal_(0.0, std, generator=generator))
