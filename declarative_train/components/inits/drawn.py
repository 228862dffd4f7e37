"""Random start values: drawn on the CPU by `draws.py`, then copied to wherever the parameter lives."""

from __future__ import annotations

from math import erf, sqrt
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from declarative_train.components.component import Init

if TYPE_CHECKING:
    import torch

    from declarative_train.components.inits.draws import Draws


class Normal(Init):
    """Normally distributed around `mean`."""

    type: Literal["normal"] = "normal"
    mean: float = Field(default=0.0, allow_inf_nan=False)
    """Mean of the distribution."""
    std: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Standard deviation."""
    zero_row: int | None = Field(default=None, ge=0)
    """A row that starts at 0, such as the padding row of an embedding."""

    def fill(self, tensor: torch.Tensor, draws: Draws) -> None:
        import torch

        draws.normal(tensor, self.mean, self.std)
        if self.zero_row is not None and 0 <= self.zero_row - draws.first_row < len(tensor):
            with torch.no_grad():
                tensor[self.zero_row - draws.first_row].zero_()


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

    def fill(self, tensor: torch.Tensor, draws: Draws) -> None:
        edge = erf(self.cut / sqrt(2))

        def cut_off(unit: torch.Tensor) -> torch.Tensor:
            values = unit.mul_(2 * edge).sub_(edge).erfinv_().mul_(sqrt(2))
            return values.clamp_(-self.cut, self.cut).mul_(self.std).add_(self.mean)

        draws.by_inverse(tensor, cut_off)


class Uniform(Init):
    """Uniformly distributed between `low` and `high`."""

    type: Literal["uniform"] = "uniform"
    low: float = Field(default=0.0, allow_inf_nan=False)
    """Smallest value."""
    high: float = Field(default=1.0, allow_inf_nan=False)
    """Largest value."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"`low: {self.low:g}` is above `high: {self.high:g}`")
        return self

    def fill(self, tensor: torch.Tensor, draws: Draws) -> None:
        draws.uniform(tensor, self.low, self.high)
