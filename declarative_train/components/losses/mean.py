"""A tensor that is the loss already."""

from __future__ import annotations

from typing import ClassVar, Literal

from declarative_train.components.component import Loss, LossModule, Misfit
from declarative_train.components.losses.fit import needs_float, needs_mask_shape, needs_no_target, needs_number
from declarative_train.terms.tensor_spec import TensorSpec


class Mean(Loss):
    """The mean of any tensor that the model computes, over its elements; it has no target."""

    needs_target: ClassVar[bool] = False

    type: Literal["mean"] = "mean"

    def check(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> Misfit | None:
        return (
            needs_no_target(self.type, target)
            or needs_float(self.type, "input", input)
            or needs_number(self.type, "input", input)
            or needs_mask_shape(self.type, mask, input.shape)
        )

    def build(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> LossModule:
        from declarative_train.components.losses.modules.elementwise import Elementwise
        from declarative_train.components.losses.modules.functions import itself

        return Elementwise(itself, input.shape, mask is not None)
