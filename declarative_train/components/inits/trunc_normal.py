"""Normally distributed start values without the tails."""

from __future__ import annotations

from math import erf, sqrt
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from declarative_train.components.component import Init
from declarative_train.components.inits.drawing import draw

if TYPE_CHECKING:
    import torch


class TruncNormal(Init):
    """Normally distributed around `mean`, cut off at `cut` standard deviations on both sides.

    Drawn by the inverse of the distribution function: one uniform number per element. torch's `trunc_normal_` takes
    the bounds as values instead, so that its default of -2..2 does not cut anything at a small `std`.
    """

    type: Literal["trunc_normal"] = "trunc_normal"
    mean: float = Field(default=0.0, allow_inf_nan=False)
    """Mean of the distribution."""
    std: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Standard deviation before the cut."""
    cut: float = Field(default=2.0, gt=0, allow_inf_nan=False)
    """No value is further from the mean than this many standard deviations."""

    def fill(self, tensor: torch.Tensor, generator: torch.Generator) -> None:
        edge = erf(self.cut / sqrt(2))

        def write(values: torch.Tensor) -> None:
            values.uniform_(-edge, edge, generator=generator).erfinv_().mul_(sqrt(2))
            values.clamp_(-self.cut, self.cut).mul_(self.std).add_(self.mean)

        draw(tensor, write)
