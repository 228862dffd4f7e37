"""Dropout for networks of `selu`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from declarative_train.components.component import Layer, Misfit
from declarative_train.components.layers.fit import Inputs, needs_float

if TYPE_CHECKING:
    from torch import nn


class AlphaDropout(Layer):
    """Dropout that keeps mean and variance; for networks of `selu`."""

    type: Literal["alpha_dropout"] = "alpha_dropout"
    p: float = Field(default=0.5, ge=0, lt=1)
    """Probability of an element to be left out."""

    @property
    def is_random(self) -> bool:
        return self.p > 0

    def check(self, inputs: Inputs) -> Misfit | None:
        return needs_float(self, inputs)

    def build(self, inputs: Inputs) -> nn.Module:
        from torch import nn

        return nn.AlphaDropout(self.p)
