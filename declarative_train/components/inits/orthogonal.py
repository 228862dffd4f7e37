"""Start values with orthogonal rows or columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from declarative_train.components.component import Init, Misfit
from declarative_train.components.inits.drawing import draw, needs_a_matrix

if TYPE_CHECKING:
    import torch


class Orthogonal(Init):
    """A random (semi-)orthogonal matrix; a weight of more dimensions is one matrix (first dimension, all others).

    Saxe et al., Exact solutions to the nonlinear dynamics of learning in deep linear neural networks, 2013.
    """

    type: Literal["orthogonal"] = "orthogonal"
    gain: float = Field(default=1.0, allow_inf_nan=False)
    """Factor on the matrix."""

    def check(self, shape: tuple[int, ...]) -> Misfit | None:
        return needs_a_matrix(self.type, shape)

    def fill(self, tensor: torch.Tensor, generator: torch.Generator) -> None:
        from torch import nn

        draw(tensor, lambda values: nn.init.orthogonal_(values, self.gain, generator=generator))
