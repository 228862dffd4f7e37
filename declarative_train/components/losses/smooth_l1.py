"""Huber, divided by its delta."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from declarative_train.components.component import Loss, LossModule, Misfit
from declarative_train.components.losses.fit import elementwise
from declarative_train.terms.tensor_spec import TensorSpec


class SmoothL1(Loss):
    """Squared error / (2 `beta`) up to `beta`, beyond it the absolute error - `beta` / 2."""

    about: ClassVar[str] = "numbers"

    type: Literal["smooth_l1"] = "smooth_l1"
    beta: float = Field(1.0, ge=0)
    """The error at which the square becomes a straight line of slope 1; 0 is `l1`."""

    def check(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> Misfit | None:
        return elementwise(self.type, input, target, mask)

    def build(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> LossModule:
        from declarative_train.components.losses.modules import functions
        from declarative_train.components.losses.modules.elementwise import Elementwise

        return Elementwise(functions.SmoothL1(self.beta), input.shape, mask is not None)
