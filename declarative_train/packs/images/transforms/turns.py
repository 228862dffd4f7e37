"""Transforms that mirror or rotate an image without changing its size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from declarative_train.components.counter_rng import Drawn
from declarative_train.components.transform import Motion, Transform

Share = Annotated[float, Field(ge=0, le=1)]


class RandomFlip(Transform):
    """Random mirror image."""

    is_random: ClassVar[bool] = True
    moves: ClassVar[bool | None] = True

    type: Literal["random_flip"] = "random_flip"
    direction: Literal["horizontal", "vertical"] = "horizontal"
    """horizontal: swap left and right; vertical: swap top and bottom."""
    p: Share = 0.5
    """Probability."""

    def apply(self, values: list[Any], drawn: Drawn) -> list[Any]:
        from PIL import Image

        if not drawn.happens(self.p):
            return values
        way = "FLIP_LEFT_RIGHT" if self.direction == "horizontal" else "FLIP_TOP_BOTTOM"
        return [each.transpose(Image.Transpose[way]) for each in values]

    def motions(self, size: tuple[int, int], drawn: Drawn) -> Sequence[Motion]:
        if not drawn.happens(self.p):
            return []
        if self.direction == "horizontal":
            return [Motion((-1.0, 0.0, float(size[1]), 0.0, 1.0, 0.0), size)]
        return [Motion((1.0, 0.0, 0.0, 0.0, -1.0, float(size[0])), size)]


class RandomRotation(Transform):
    """Random rotation around the center, by an angle between -degrees and degrees; the area outside of the image is
    black.
    """

    is_random: ClassVar[bool] = True
    moves: ClassVar[bool | None] = True

    type: Literal["random_rotation"] = "random_rotation"
    degrees: Annotated[float, Field(gt=0, le=180)]
    """Maximum angle, in degrees."""
    method: Literal["nearest", "bilinear", "bicubic"] = "bilinear"
    """Interpolation of pixels."""

    def apply(self, values: list[Any], drawn: Drawn) -> list[Any]:
        from PIL import Image

        angle = self._angle(drawn)
        return [each.rotate(angle, Image.Resampling[self.method.upper()]) for each in values]

    def motions(self, size: tuple[int, int], drawn: Drawn) -> Sequence[Motion]:
        return [turning(size, self._angle(drawn))]

    def _angle(self, drawn: Drawn) -> float:
        return drawn.uniform(-self.degrees, self.degrees)


def turning(size: tuple[int, int], degrees: float) -> Motion:
    """Return the Motion that rotates an image of `size` (height, width) counterclockwise around its center."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    y, x = size[0] / 2, size[1] / 2
    return Motion((cos, sin, x - cos * x - sin * y, -sin, cos, y + sin * x - cos * y), size)
