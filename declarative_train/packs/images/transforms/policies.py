"""Transforms that apply a change drawn at random from a list of changes.

The lists and the strengths are those of the papers. Pixels that a shear or a rotation adds from outside the image are
black.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from declarative_train.components.counter_rng import Drawn
from declarative_train.components.transform import Motion, Transform
from declarative_train.packs.images.transforms.colours import enhance
from declarative_train.packs.images.transforms.turns import turning

_LEVELS = 31  # strengths of a change, from none to the maximum
Change = Callable[[Any, float], Any]


def _make_shear(across: bool) -> Change:
    def change(picture: Any, amount: float) -> Any:
        """Return the image sheared around its center. `amount`: shift in pixels, per pixel of distance from the
        center."""
        middle = amount * (picture.height if across else picture.width) / 2
        matrix = (1, amount, -middle, 0, 1, 0) if across else (1, 0, 0, amount, 1, -middle)
        return _map_affine(picture, matrix)

    return change


def _make_shift(across: bool) -> Change:
    def change(picture: Any, amount: float) -> Any:
        return _map_affine(picture, (1, 0, amount, 0, 1, 0) if across else (1, 0, 0, 0, 1, amount))

    return change


def _map_affine(picture: Any, matrix: tuple[float, ...]) -> Any:
    from PIL import Image

    return picture.transform(picture.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST)


def _rotate(picture: Any, degrees: float) -> Any:
    return picture.rotate(degrees)


def _make_enhancement(what: str) -> Change:
    def change(picture: Any, amount: float) -> Any:
        if what == "saturation" and picture.mode == "L":
            return picture
        return enhance(picture, what, 1 + amount)

    return change


def _change_colours(name: str) -> Change:
    """Return a function (image, amount) -> changed image. It applies the function `name` of Pillow's `ImageOps` to the
    colours; alpha is kept separately, because these functions do not support it."""

    def change(picture: Any, amount: float) -> Any:
        from PIL import ImageOps

        alpha = picture.getchannel("A") if picture.mode == "RGBA" else None
        plain = picture.convert("RGB") if alpha is not None else picture
        if name == "posterize":
            found = ImageOps.posterize(plain, round(amount))
        elif name == "solarize":
            found = ImageOps.solarize(plain, round(amount))
        else:
            found = getattr(ImageOps, name)(plain)
        if alpha is not None:
            found.putalpha(alpha)
        return found

    return change


_CHANGES: dict[str, Change] = {
    "identity": lambda picture, amount: picture,
    "shear_x": _make_shear(True),
    "shear_y": _make_shear(False),
    "translate_x": _make_shift(True),
    "translate_y": _make_shift(False),
    "rotate": _rotate,
    "brightness": _make_enhancement("brightness"),
    "saturation": _make_enhancement("saturation"),
    "contrast": _make_enhancement("contrast"),
    "sharpness": _make_enhancement("sharpness"),
    "posterize": _change_colours("posterize"),
    "solarize": _change_colours("solarize"),
    "autocontrast": _change_colours("autocontrast"),
    "equalize": _change_colours("equalize"),
}
_MOVES = frozenset({"shear_x", "shear_y", "translate_x", "translate_y", "rotate"})
_BOTH_WAYS = frozenset(
    {"shear_x", "shear_y", "translate_x", "translate_y", "rotate", "brightness", "saturation", "contrast", "sharpness"}
)


def _change(
    drawn: Drawn, level: int, greatest: dict[str, tuple[float, float]]
) -> tuple[str, Callable[[int, int], float]]:
    """Draw a change, such as a rotation. Return its name, and a function (height, width of an image) -> amount of the
    change. `level`: strength of the change, from 0 to `_LEVELS` - 1. `greatest`: {change: its amounts at the lowest and
    at the highest level}."""
    name = list(_CHANGES)[drawn.below(len(_CHANGES))]
    first, last = greatest.get(name, (0.0, 0.0))
    amount = first + (last - first) * level / (_LEVELS - 1)
    sign = -1.0 if drawn.happens(0.5) and name in _BOTH_WAYS else 1.0
    is_share = name.startswith("translate") and last < 1  # the amount is a fraction of the side

    def of(height: int, width: int) -> float:
        return sign * amount * ((width if name == "translate_x" else height) if is_share else 1.0)

    return name, of


def _apply_change(
    values: list[Any],
    drawn: Drawn,
    level: int,
    greatest: dict[str, tuple[float, float]],
    made: frozenset[str] = frozenset(_CHANGES),
) -> list[Any]:
    """Draw a random change, apply it to the images of a sample, and return the changed images.

    `level`     strength of the change, from 0 to `_LEVELS` - 1
    `greatest`  {change: its amounts at the lowest and at the highest level}
    `made`      changes that may be applied; if another one is drawn, the images stay unchanged. So a mask keeps its
                colours, but draws the same random numbers as its image
    """
    name, amount = _change(drawn, level, greatest)
    return [_CHANGES[name](each, amount(each.height, each.width)) for each in values] if name in made else values


def _motions(
    size: tuple[int, int], drawn: Drawn, level: int, greatest: dict[str, tuple[float, float]]
) -> Sequence[Motion]:
    name, amount_of = _change(drawn, level, greatest)
    if name not in _MOVES:
        return []
    amount = amount_of(*size)
    if name == "rotate":
        return [turning(size, amount)]
    if name.startswith("translate"):  # the amount says where pixels come from, so that the image moves the other way
        return [Motion((1.0, 0.0, -amount if name == "translate_x" else 0.0, 0.0, 1.0,
                        -amount if name == "translate_y" else 0.0), size)]  # fmt: skip
    if name == "shear_x":
        return [Motion((1.0, -amount, amount * size[0] / 2, 0.0, 1.0, 0.0), size)]
    return [Motion((1.0, 0.0, 0.0, -amount, 1.0, amount * size[1] / 2), size)]


class TrivialAugment(Transform):
    """Random change of random strength, in the paper's wide ranges: Mueller and Hutter,
    https://arxiv.org/abs/2103.10158."""

    is_random: ClassVar[bool] = True
    changes_colours: ClassVar[bool] = True
    moves: ClassVar[bool | None] = True

    type: Literal["trivial_augment"] = "trivial_augment"

    def apply(self, values: list[Any], drawn: Drawn) -> list[Any]:
        return _apply_change(values, drawn, drawn.below(_LEVELS), _WIDE)

    def apply_to_masks(self, masks: list[Any], drawn: Drawn) -> list[Any]:
        return _apply_change(masks, drawn, drawn.below(_LEVELS), _WIDE, _MOVES)

    def motions(self, size: tuple[int, int], drawn: Drawn) -> Sequence[Motion]:
        return _motions(size, drawn, drawn.below(_LEVELS), _WIDE)


class RandAugment(Transform):
    """Sequence of random changes of the same strength: Cubuk et al., https://arxiv.org/abs/1909.13719."""

    is_random: ClassVar[bool] = True
    changes_colours: ClassVar[bool] = True
    moves: ClassVar[bool | None] = True

    type: Literal["rand_augment"] = "rand_augment"
    num_ops: Annotated[int, Field(ge=1, le=14)] = 2
    """Number of changes, one after the other; a change may be repeated."""
    magnitude: Annotated[int, Field(ge=0, le=30)] = 9
    """Strength, 0 to 30."""

    def apply(self, values: list[Any], drawn: Drawn) -> list[Any]:
        for _ in range(self.num_ops):
            values = _apply_change(values, drawn, self.magnitude, _USUAL)
        return values

    def apply_to_masks(self, masks: list[Any], drawn: Drawn) -> list[Any]:
        for _ in range(self.num_ops):
            masks = _apply_change(masks, drawn, self.magnitude, _USUAL, _MOVES)
        return masks

    def motions(self, size: tuple[int, int], drawn: Drawn) -> Sequence[Motion]:
        return [each for _ in range(self.num_ops) for each in _motions(size, drawn, self.magnitude, _USUAL)]


_WIDE: dict[str, tuple[float, float]] = {
    "shear_x": (0, 0.99),
    "shear_y": (0, 0.99),
    "translate_x": (0, 32),
    "translate_y": (0, 32),
    "rotate": (0, 135),
    "brightness": (0, 0.99),
    "saturation": (0, 0.99),
    "contrast": (0, 0.99),
    "sharpness": (0, 0.99),
    "posterize": (8, 2),
    "solarize": (256, 0),
}
_USUAL: dict[str, tuple[float, float]] = {
    "shear_x": (0, 0.3),
    "shear_y": (0, 0.3),
    "translate_x": (0, 150 / 331),
    "translate_y": (0, 150 / 331),
    "rotate": (0, 30),
    "brightness": (0, 0.9),
    "saturation": (0, 0.9),
    "contrast": (0, 0.9),
    "sharpness": (0, 0.9),
    "posterize": (8, 4),
    "solarize": (256, 0),
}
