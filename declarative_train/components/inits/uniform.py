"""Uniformly distributed start values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from declarative_train.components.component import Init
from declarative_train.components.inits.drawing import draw

if TYPE_CHECKING:
    import torch


class Uniform(Init):
    """Uniformly distributed between `low` and `high`."""

    type: Literal["uniform"] = "uniform"
    low: float = Field(default=0.0, allow_inf_nan=False)
    """Smallest value."""
    high: float = Field(default=1.0, allow_inf_nan=False)
    """Largest value."""

    @model_validator(mode="after")
    def _ordered(self) -> Uniform:
        if self.low > self.high:
            raise ValueError(f"`low: {self.low:g}` is above `high: {self.high:g}`")
        return self

    def fill(self, tensor: torch.Tensor, generator: torch.Generator) -> None:
        draw(tensor, lambda values: values.uniform_(self.low, self.high, generator=generator))
