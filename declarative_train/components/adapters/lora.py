"""Low-rank adaptation: two thin matrices beside a frozen one."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from declarative_train.components.component import Adapter, Init
from declarative_train.components.layers.starts import linear_weight, start

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch import nn


class Lora(Adapter):
    """Trains `scaling * B A` beside a linear map's frozen weight: `lora_A.weight` (rank, in), `lora_B.weight` (out,
    rank).

    A starts as PEFT starts it, B at zero, so that the first step sees the base alone. Hu et al., LoRA, 2021.
    """

    type: Literal["lora"] = "lora"
    rank: int = Field(default=8, ge=1)
    """Rows of A and columns of B."""
    alpha: float = Field(default=8.0, gt=0, allow_inf_nan=False)
    """The scaling is alpha / rank."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Probability of an element of the input to be left out on its way to A, in training."""
    rslora: bool = False
    """Scale by alpha / sqrt(rank), which keeps large ranks learning. Kalajdzievski, 2023."""

    @property
    def is_random(self) -> bool:
        return self.dropout > 0

    @property
    def scaling(self) -> float:
        return self.alpha / (sqrt(self.rank) if self.rslora else self.rank)

    def shapes(self, weight: tuple[int, int]) -> dict[str, tuple[int, int]]:
        return {"lora_A.weight": (self.rank, weight[1]), "lora_B.weight": (weight[0], self.rank)}

    def init_of(self, parameter: str) -> Init:
        return linear_weight() if parameter == "lora_A.weight" else start("zeros")

    def build(self, base: nn.Linear) -> nn.Module:
        from declarative_train.components.adapters.modules.lora import LoraLinear

        return LoraLinear(base, self)

    def merged(self, weight: torch.Tensor, own: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return weight + own["lora_B.weight"] @ own["lora_A.weight"] * self.scaling
