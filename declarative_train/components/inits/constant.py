"""The same number everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from declarative_train.components.component import Init

if TYPE_CHECKING:
    import torch

    from declarative_train.components.inits.draws import Draws


class Constant(Init):
    """Every element starts at `value`."""

    type: Literal["constant"] = "constant"
    value: float = Field(allow_inf_nan=False)
    """The number."""

    def fill(self, tensor: torch.Tensor, draws: Draws) -> None:
        import torch

        with torch.no_grad():
            tensor.fill_(self.value)


class Zeros(Init):
    """Every element starts at 0."""

    type: Literal["zeros"] = "zeros"

    def fill(self, tensor: torch.Tensor, draws: Draws) -> None:
        import torch

        with torch.no_grad():
            tensor.zero_()


class Ones(Init):
    """Every element starts at 1."""

    type: Literal["ones"] = "ones"

    def fill(self, tensor: torch.Tensor, draws: Draws) -> None:
        import torch

        with torch.no_grad():
            tensor.fill_(1)
