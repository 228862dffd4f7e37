"""Squared error."""

from __future__ import annotations

from typing import ClassVar, Literal

from declarative_train.components.component import Loss, LossModule, Misfit
from declarative_train.components.losses.fit import elementwise
from declarative_train.terms.tensor_spec import TensorSpec


class Mse(Loss):
    """Mean squared error, over the elements of input and target, which have one shape."""

    about: ClassVar[str] = "numbers"

    type: Literal["mse"] = "mse"

    def check(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> Misfit | None:
        return elementwise(self.type, input, target, mask)

    def build(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> LossModule:
        from declarative_train.components.losses.modules.elementwise import Elementwise
        from declarative_train.components.losses.modules.functions import mse

        return Elementwise(mse, input.shape, mask is not None)
