"""Normally distributed start values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from declarative_train.components.component import Init
from declarative_train.components.inits.drawing import draw

if TYPE_CHECKING:
    import torch


class Normal(Init):
    """Normally distributed around `mean`."""

    type: Literal["normal"] = "normal"
    mean: float = Field(default=0.0, allow_inf_nan=False)
    """Mean of the distribution."""
    std: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Standard deviation."""
    zero_row: int | None = Field(default=None, ge=0)
    """A row that starts at 0, such as the padding row of an embedding."""

    def fill(self, tensor: torch.Tensor, generator: torch.Generator) -> None:
        import torch

        draw(tensor, lambda values: values.normal_(self.mean, self.std, generator=generator))
        if self.zero_row is not None:
            with torch.no_grad():
                tensor[self.zero_row].zero_()
