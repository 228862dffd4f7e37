"""Loss `cosine_distance`."""

from __future__ import annotations

from typing import ClassVar, Literal

from declarative_train.components.component import LossModule
from declarative_train.components.losses.elementwise import ElementwiseLoss
from declarative_train.core.tensor_spec import TensorSpec


class CosineDistance(ElementwiseLoss):
    """Mean of 1 - cos(input - target), of angles in radians."""

    bounds: ClassVar[tuple[float, float]] = (0.0, 2.0)

    type: Literal["cosine_distance"] = "cosine_distance"

    def build(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> LossModule:
        from declarative_train.components.losses.modules.elementwise import ElementwiseModule
        from dtrain_angles.modules import cosine_distance

        return ElementwiseModule(cosine_distance, input.shape, mask is not None)
