"""Absolute error."""

from __future__ import annotations

from typing import ClassVar, Literal

from declarative_train.components.component import Loss, LossModule, Misfit
from declarative_train.components.losses.fit import elementwise
from declarative_train.terms.tensor_spec import TensorSpec


class L1(Loss):
    """Mean absolute error, over the elements of input and target, which have one shape."""

    about: ClassVar[str] = "numbers"

    type: Literal["l1"] = "l1"

    def check(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> Misfit | None:
        return elementwise(self.type, input, target, mask)

    def build(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> LossModule:
        from declarative_train.components.losses.modules.elementwise import Elementwise
        from declarative_train.components.losses.modules.functions import l1

        return Elementwise(l1, input.shape, mask is not None)
