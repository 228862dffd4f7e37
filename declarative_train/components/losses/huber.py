"""Squared near the target, absolute far from it."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from declarative_train.components.component import Loss, LossModule, Misfit
from declarative_train.components.losses.fit import elementwise
from declarative_train.terms.tensor_spec import TensorSpec


class Huber(Loss):
    """Half the squared error up to `delta`, beyond it `delta` times (the absolute error - `delta` / 2)."""

    about: ClassVar[str] = "numbers"

    type: Literal["huber"] = "huber"
    delta: float = Field(1.0, gt=0)
    """The error at which the square becomes a straight line."""

    def check(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> Misfit | None:
        return elementwise(self.type, input, target, mask)

    def build(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> LossModule:
        from declarative_train.components.losses.modules import functions
        from declarative_train.components.losses.modules.elementwise import Elementwise

        return Elementwise(functions.Huber(self.delta), input.shape, mask is not None)
