"""Transforms that turn a picture and keep its size."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from declarative_train.components.data import Transform
from declarative_train.components.keyed import Drawn

Share = Annotated[float, Field(ge=0, le=1)]


class RandomFlip(Transform):
    """Mirrored, or not."""

    is_random: ClassVar[bool] = True
    moves: ClassVar[bool | None] = True

    type: Literal["random_flip"] = "random_flip"
    direction: Literal["horizontal", "vertical"] = "horizontal"
    """horizontal: left and right change places; vertical: top and bottom."""
    p: Share = 0.5
    """How often."""

    def apply(self, values: list[Any], drawn: Drawn) -> list[Any]:
        from PIL import Image

        if not drawn.happens(self.p):
            return values
        way = "FLIP_LEFT_RIGHT" if self.direction == "horizontal" else "FLIP_TOP_BOTTOM"
        return [each.transpose(Image.Transpose[way]) for each in values]


class RandomRotation(Transform):
    """Turned around its middle, by an angle out of -degrees to degrees; what comes from outside is black."""

    is_random: ClassVar[bool] = True
    moves: ClassVar[bool | None] = True

    type: Literal["random_rotation"] = "random_rotation"
    degrees: Annotated[float, Field(gt=0, le=180)]
    """The largest angle."""
    method: Literal["nearest", "bilinear", "bicubic"] = "bilinear"
    """How a pixel between others is made of them."""

    def apply(self, values: list[Any], drawn: Drawn) -> list[Any]:
        from PIL import Image

        angle = drawn.uniform(-self.degrees, self.degrees)
        return [each.rotate(angle, Image.Resampling[self.method.upper()]) for each in values]
