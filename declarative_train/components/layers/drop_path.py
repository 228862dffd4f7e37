"""Stochastic depth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from declarative_train.components.component import Layer, Misfit
from declarative_train.components.layers.fit import Inputs, needs_float

if TYPE_CHECKING:
    from torch import nn


class DropPath(Layer):
    """Stochastic depth: sets a sample's whole branch to zero with probability `p`. Stands before a residual sum.

    Huang et al., Deep networks with stochastic depth, 2016.
    """

    type: Literal["drop_path"] = "drop_path"
    p: float = Field(default=0.1, ge=0, lt=1)
    """Probability of a sample to skip the branch."""

    @property
    def is_random(self) -> bool:
        return self.p > 0

    def check(self, inputs: Inputs) -> Misfit | None:
        return needs_float(self, inputs)

    def build(self, inputs: Inputs) -> nn.Module:
        from declarative_train.components.layers.modules.dropout import DropPath as Module

        return Module(self.p)
