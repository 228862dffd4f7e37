"""Leaves whole channels out at random in training: dropout1d, dropout2d, dropout3d."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from declarative_train.components.component import Layer, Misfit
from declarative_train.components.layers.fit import Inputs, needs_float, needs_shape

if TYPE_CHECKING:
    from torch import nn


class Dropout1d(Layer):
    """Sets whole channels of (B, C, T) to zero with probability `p`."""

    type: Literal["dropout1d"] = "dropout1d"
    p: float = Field(default=0.5, ge=0, lt=1)
    """Probability of a channel to be left out."""

    @property
    def is_random(self) -> bool:
        return self.p > 0

    def check(self, inputs: Inputs) -> Misfit | None:
        return needs_shape(self, inputs, "(B, C, T)", 2) or needs_float(self, inputs)

    def build(self, inputs: Inputs) -> nn.Module:
        from torch import nn

        return nn.Dropout1d(self.p)


class Dropout2d(Layer):
    """Sets whole channels of (B, C, H, W) to zero with probability `p`."""

    type: Literal["dropout2d"] = "dropout2d"
    p: float = Field(default=0.5, ge=0, lt=1)
    """Probability of a channel to be left out."""

    @property
    def is_random(self) -> bool:
        return self.p > 0

    def check(self, inputs: Inputs) -> Misfit | None:
        return needs_shape(self, inputs, "(B, C, H, W)", 3) or needs_float(self, inputs)

    def build(self, inputs: Inputs) -> nn.Module:
        from torch import nn

        return nn.Dropout2d(self.p)


class Dropout3d(Layer):
    """Sets whole channels of (B, C, D, H, W) to zero with probability `p`."""

    type: Literal["dropout3d"] = "dropout3d"
    p: float = Field(default=0.5, ge=0, lt=1)
    """Probability of a channel to be left out."""

    @property
    def is_random(self) -> bool:
        return self.p > 0

    def check(self, inputs: Inputs) -> Misfit | None:
        return needs_shape(self, inputs, "(B, C, D, H, W)", 4) or needs_float(self, inputs)

    def build(self, inputs: Inputs) -> nn.Module:
        from torch import nn

        return nn.Dropout3d(self.p)
