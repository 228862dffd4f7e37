"""Transforms of the size of an image: resizing and cropping.

Resizing uses Pillow's filters, which average over all pixels of a reduced image (no aliasing), with 8 bits per channel.
Sizes are computed as by torchvision's functions of the same names.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from declarative_train.components.counter_rng import Drawn
from declarative_train.components.transform import Motion, Size, Transform

Side = Annotated[int, Field(ge=1, le=65_535)]
Sides = Side | tuple[Side, Side]
Method = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]


def sides(size: Sides) -> tuple[int, int]:
    """Return the (height, width) that `size`, a key of a recipe, means. A single number is the side of a square."""
    return size if isinstance(size, tuple) else (size, size)


def resize(picture: Any, height: int, width: int, method: Method, box: tuple[int, int, int, int] | None = None) -> Any:
    """Return an image resized to `height` and `width`. `box`: the part (left, top, right, bottom) of the image to use;
    None: all of it."""
    from PIL import Image

    if picture.size == (width, height) and box in (None, (0, 0, width, height)):
        return picture
    return picture.resize((width, height), Image.Resampling[method.upper()], box)


def crop(picture: Any, top: int, left: int, height: int, width: int) -> Any:
    """Return the rectangle of an image that begins at pixel (`top`, `left`). It is black where it is outside the
    image."""
    if (left, top, width, height) == (0, 0, *picture.size):
        return picture
    return picture.crop((left, top, left + width, top + height))


def scaling(old: tuple[int, int], new: tuple[int, int]) -> Motion:
    return Motion((new[1] / old[1], 0.0, 0.0, 0.0, new[0] / old[0], 0.0), new)


def cropping(top: int, left: int, height: int, width: int) -> Motion:
    return Motion((1.0, 0.0, float(-left), 0.0, 1.0, float(-top)), (height, width))


def same_size(values: list[Any]) -> tuple[int, int]:
    """Return the (height, width) that all images in `values` have. Raises ValueError if their sizes differ, because the
    images of one sample are transformed with the same random numbers."""
    first = values[0].size
    other = next((value.size for value in values if value.size != first), None)
    if other is not None:
        raise ValueError(
            f"the images of one sample share random draws, but are {first[1]} x {first[0]} and {other[1]} x {other[0]}"
        )
    return int(first[1]), int(first[0])


class Resize(Transform):
    """Image of another size. If `size` is one number, it is the new length of the shorter side, and the longer one
    keeps the aspect ratio; two numbers are height and width."""

    moves: ClassVar[bool | None] = True

    type: Literal["resize"] = "resize"
    size: Sides
    """Length of the shorter side, or height and width."""
    method: Method = "bilinear"
    """Filter of Pillow; all except `nearest` use every pixel of an image that shrinks."""

    def size_after(self, size: Size) -> Size:
        if isinstance(self.size, tuple):
            return self.size
        if size[0] is None or size[1] is None:
            return (None, None)
        return self._compute_size(size[0], size[1])

    def _compute_size(self, height: int, width: int) -> tuple[int, int]:
        if isinstance(self.size, tuple):
            return self.size
        if height <= width:
            return self.size, max(1, int(self.size * width / height))
        return max(1, int(self.size * height / width)), self.size

    def apply(self, values: list[Any], drawn: Drawn) -> list[Any]:
        return [resize(each, *self._compute_size(each.height, each.width), self.method) for each in values]

    def motions(self, size: tuple[int, int], drawn: Drawn) -> Sequence[Motion]:
        return [scaling(size, self._compute_size(*size))]


class CenterCrop(Transform):
    """Center of an image. An image that is smaller than the crop gets black edges."""

    moves: ClassVar[bool | None] = True

    type: Literal["center_crop"] = "center_crop"
    size: Sides
    """Height and width of the crop; one number: a square."""

    def size_after(self, size: Size) -> Size:
        return sides(self.size)

    def apply(self, values: list[Any], drawn: Drawn) -> list[Any]:
        return [crop(each, *self._middle(each.height, each.width)) for each in values]

    def motions(self, size: tuple[int, int], drawn: Drawn) -> Sequence[Motion]:
        return [cropping(*self._middle(*size))]

    def _middle(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Return (top, left, height, width) of the crop in an image of this height and width."""
        tall, wide = sides(self.size)
        return round((height - tall) / 2), round((width - wide) / 2), tall, wide


class RandomCrop(Transform):
    """Crop at a random position."""

    is_random: ClassVar[bool] = True
    moves: ClassVar[bool | None] = True

    type: Literal["random_crop"] = "random_crop"
    size: Sides
    """Height and width of the crop; one number: a square."""
    padding: Annotated[int, Field(ge=0, le=4096)] = 0
    """Black pixels added on every side before the position is drawn. An image that is still smaller than `size` gets
    the missing pixels, half on each side."""

    def size_after(self, size: Size) -> Size:
        return sides(self.size)

    def apply(self, values: list[Any], drawn: Drawn) -> list[Any]:
        part = self._part(*same_size(values), drawn)
        return [crop(each, *part) for each in values]

    def motions(self, size: tuple[int, int], drawn: Drawn) -> Sequence[Motion]:
        return [cropping(*self._part(*size, drawn))]

    def _part(self, height: int, width: int, drawn: Drawn) -> tuple[int, int, int, int]:
        tall, wide = sides(self.size)
        top = self._place(drawn, height, tall)
        return top, self._place(drawn, width, wide), tall, wide

    def _place(self, drawn: Drawn, side: int, wanted: int) -> int:
        least, greatest = -self.padding, side + self.padding - wanted
        if greatest < least:
            return (least + greatest) // 2
        return least + drawn.below(greatest - least + 1)


class RandomResizedCrop(Transform):
    """Crop of random area and shape, resized: Szegedy et al., https://arxiv.org/abs/1409.4842."""

    is_random: ClassVar[bool] = True
    moves: ClassVar[bool | None] = True

    type: Literal["random_resized_crop"] = "random_resized_crop"
    size: Sides
    """Height and width of the result; one number: a square."""
    scale: tuple[Annotated[float, Field(gt=0, le=1)], Annotated[float, Field(gt=0, le=1)]] = (0.08, 1.0)
    """Minimum and maximum share of the area."""
    ratio: tuple[Annotated[float, Field(gt=0, le=100)], Annotated[float, Field(gt=0, le=100)]] = (0.75, 4 / 3)
    """Minimum and maximum width / height; its logarithm is uniform."""
    method: Method = "bilinear"
    """Filter of Pillow; all except `nearest` use every pixel of an image that shrinks."""

    @model_validator(mode="after")
    def _check_order(self) -> RandomResizedCrop:
        for key, (low, high) in (("scale", self.scale), ("ratio", self.ratio)):
            if low > high:
                raise ValueError(f"`{key}` goes from {low:g} down to {high:g}; the minimum comes first")
        return self

    def size_after(self, size: Size) -> Size:
        return sides(self.size)

    def apply(self, values: list[Any], drawn: Drawn) -> list[Any]:
        top, left, height, width = self._part(*same_size(values), drawn)
        box = (left, top, left + width, top + height)
        return [resize(each, *sides(self.size), self.method, box) for each in values]

    def motions(self, size: tuple[int, int], drawn: Drawn) -> Sequence[Motion]:
        part = self._part(*size, drawn)
        return [cropping(*part), scaling(part[2:], sides(self.size))]

    def _part(self, height: int, width: int, drawn: Drawn) -> tuple[int, int, int, int]:
        """Return (top, left, height, width) of a random crop of an image of `height` x `width` pixels. If ten random
        crops are larger than the image, return the largest crop in the center with an allowed aspect ratio."""
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for _ in range(10):
            area = height * width * drawn.uniform(*self.scale)
            ratio = math.exp(drawn.uniform(low, high))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                return drawn.below(height - h + 1), drawn.below(width - w + 1), h, w
        w, h = width, height
        if width / height < self.ratio[0]:
            h = max(1, min(height, round(width / self.ratio[0])))
        elif width / height > self.ratio[1]:
            w = max(1, min(width, round(height * self.ratio[1])))
        return (height - h) // 2, (width - w) // 2, h, w
