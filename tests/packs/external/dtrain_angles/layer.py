"""Layer `sine`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from declarative_train.components.layers.activations import Activation
from declarative_train.components.layers.shape_checks import Inputs

if TYPE_CHECKING:
    from torch import nn


class Sine(Activation):
    """sin(frequency * x)."""

    type: Literal["sine"] = "sine"
    frequency: float = Field(default=1.0, gt=0)
    """Factor of the input."""

    def build(self, inputs: Inputs) -> nn.Module:
        from dtrain_angles.modules import SineModule

        return SineModule(self.frequency)
