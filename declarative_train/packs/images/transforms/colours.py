"""Transforms of the colours of an image. They do not move its content."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from declarative_train.components.component import ShapeError
from declarative_train.components.counter_rng import Drawn
from declarative_train.components.transform import Size, Transform

Strength = Annotated[float, Field(ge=0, le=10)]
_PARTS = ("brightness", "contrast", "saturation")


def enhance(picture: Any, what: str, factor: float) -> Any:
    """Return the image with one property scaled by `factor`; 1.0 changes nothing. `what`: the property: brightness,
    contrast, saturation or sharpness. Alpha is kept."""
    from PIL import ImageEnhance

    kind = {"saturation": "Color"}.get(what, what.capitalize())
    return getattr(ImageEnhance, kind)(picture).enhance(factor)


def turn_hue(picture: Any, share: float) -> Any:
    """Return the image with its hue rotated by the fraction `share` of the colour circle."""
    import numpy as np
    from PIL import Image

    alpha = picture.getchannel("A") if picture.mode == "RGBA" else None
    hue, saturation, value = picture.convert("RGB").convert("HSV").split()
    moved = (np.asarray(hue).astype(np.int16) + round(share * 256)) % 256
    turned = Image.merge("HSV", (Image.fromarray(moved.astype(np.uint8)), saturation, value)).convert("RGB")
    if alpha is not None:
        turned.putalpha(alpha)
    return turned


class ColorJitter(Transform):
    """Brightness, contrast, saturation and hue changed by random factors, in a random order."""

    is_random: ClassVar[bool] = True
    changes_colours: ClassVar[bool] = True

    type: Literal["color_jitter"] = "color_jitter"
    strength: Strength = 0.0
    """Default of `brightness`, `contrast` and `saturation`."""
    brightness: Strength | None = None
    """b: the factor is between 1 - b (or 0) and 1 + b."""
    contrast: Strength | None = None
    """Range of the factor, as for `brightness`."""
    saturation: Strength | None = None
    """Range of the factor, as for `brightness`; images of one channel are refused."""
    hue: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    """h: rotation by a share of the color circle, between -h and h."""

    @model_validator(mode="after")
    def _does_something(self) -> ColorJitter:
        if not any((*(self._amount(part) for part in _PARTS), self.hue)):
            raise ValueError("set a strength: `strength: 0.4`, or `brightness`, `contrast`, `saturation`, `hue`")
        return self

    def _amount(self, part: str) -> float:
        own: float | None = getattr(self, part)
        return self.strength if own is None else own

    def check(self, size: Size, channels: int) -> ShapeError | None:
        if channels > 1:
            return None
        key = "hue" if self.hue else "saturation"
        if self.hue or self.saturation:
            return ShapeError(f"images of one channel have no {key}", field=key, help=f"remove `{key}`")
        return None

    def apply(self, values: list[Any], drawn: Drawn) -> list[Any]:
        factors = {}
        for part in _PARTS:
            amount = self._amount(part)
            factors[part] = drawn.uniform(max(0.0, 1 - amount), 1 + amount)
        turn = drawn.uniform(-self.hue, self.hue)
        for place in drawn.order(len(_PARTS) + 1):
            if place == len(_PARTS):
                values = [turn_hue(each, turn) if self.hue else each for each in values]
            elif self._amount(part := _PARTS[place]):
                values = [
                    each if part == "saturation" and each.mode == "L" else enhance(each, part, factors[part])
                    for each in values
                ]
        return values
