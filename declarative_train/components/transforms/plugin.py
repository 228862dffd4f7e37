"""Transform of a plugin: the user's code changes one image or array; its random numbers depend only on the sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from pydantic import PrivateAttr

from declarative_train.components.component import ShapeError
from declarative_train.components.counter_rng import Drawn
from declarative_train.components.plugin_components import PluginComponent, line_in_plugin, make_seeded
from declarative_train.components.transform import Size, Transform

_TRIED = 33  # size of a generated image if sizes vary; odd, so that halves are not whole numbers
_KEY = 7


class PluginTransform(PluginComponent, Transform):
    """Transform of a plugin: the user's method `apply(self, picture, random)` returns the changed image.

    `random` is a `numpy.random.Generator`. Its seed is different for each sample, and the same for all fields of a
    sample. A method without this argument can draw from the global generators of torch, numpy or Python if the class
    declares `is_random = True`. They are then seeded before each call. This needs loader processes, because the
    generators belong to a whole process."""

    own: ClassVar[frozenset[str]] = frozenset({"type", "fields", "only"})
    moves: ClassVar[bool | None] = None
    sides: ClassVar[tuple[int | str, int | str] | None] = None
    ends: ClassVar[tuple[float, float] | None] = None
    """`sides` and `ends` are what the class declares as `size` and `interval`."""

    _object: Any = PrivateAttr(None)

    @classmethod
    def settle(cls) -> None:
        cls.is_random = cls.is_random or cls.takes_random()

    @classmethod
    def takes_random(cls) -> bool:
        return cls.num_arguments == 2

    @property
    def draws_globally(self) -> bool:
        return self.is_random and not self.takes_random()

    @classmethod
    def declare(cls, key: str, value: object) -> None:
        known = set(cls.model_fields) - cls.own
        pair = isinstance(value, tuple | list) and len(value) == 2
        if key == "size":
            if not pair or not all(each in known if isinstance(each, str) else _is_side(each) for each in value):  # type: ignore[attr-defined]
                hint = "it is (height, width): numbers of 1 or more, or names of arguments of `__init__`"
                raise ValueError("`size` is not valid", hint)
            cls.sides = tuple(value)  # type: ignore[arg-type,assignment]
            return
        if not pair or not all(isinstance(each, int | float) for each in value):  # type: ignore[attr-defined]
            raise ValueError("`interval` is not valid", "it is (least, greatest): two numbers")
        cls.ends = tuple(value)  # type: ignore[arg-type,assignment]

    def check(self, size: Size, channels: int) -> ShapeError | None:
        if self.sides is not None and (bad := next((each for each in self._sides() if not _is_side(each)), None)):
            return ShapeError(f"`size` of `{self.type}` is {bad}, but a side is a number of 1 or more")
        return self._check_size(size, channels) if self.may_import else None

    def size_after(self, size: Size) -> Size:
        return size if self.sides is None else self._sides()

    def interval_after(self, interval: tuple[float, float], channels: int) -> tuple[float, float]:
        if self.ends is not None:
            return self.ends
        return (float("-inf"), float("inf")) if self.on_numbers else interval

    def _sides(self) -> tuple[int, int]:
        height, width = (getattr(self, each) if isinstance(each, str) else each for each in self.sides or ())
        return height, width

    def apply(self, values: list[Any], drawn: Drawn) -> list[Any]:
        return [self._apply_one(value, drawn) for value in values]

    def _apply_one(self, value: Any, drawn: Drawn) -> Any:
        import numpy as np

        from declarative_train.components.plugin_layer import seed_generators

        apply = self._get_object().apply
        if self.takes_random():
            random = np.random.Generator(np.random.Philox(key=drawn.key))
            found = self._call_code(apply, _copy(value), random)
        elif self.is_random:
            with seed_generators(drawn.key >> 1):
                found = self._call_code(apply, _copy(value))
        else:
            found = self._call_code(apply, _copy(value))
        return self._numbers(found, value) if self.on_numbers else self._picture(found, value)

    def _call_code(self, apply: Callable[..., Any], *given: Any) -> Any:
        try:
            return apply(*given)
        except Exception as error:  # report any exception of the user's code
            said = (str(error).splitlines() or [""])[0]
            where = line_in_plugin(error, self.plugin_path)
            raise ValueError(f"{type(error).__name__}{said and f': {said}'}{where}") from error

    def _numbers(self, found: Any, before: Any) -> Any:
        import numpy as np

        array = np.asarray(found.detach().cpu() if hasattr(found, "detach") else found)
        wanted = before.shape if self.sides is None else (*before.shape[:-2], *self._sides())
        if array.shape != wanted or array.dtype.kind != "f":
            raise ValueError(f"`apply` gives {array.dtype} of shape {array.shape}, expected float32 of shape {wanted}")
        return np.ascontiguousarray(array, np.float32)

    def _picture(self, found: Any, before: Any) -> Any:
        from PIL import Image

        if not isinstance(found, Image.Image):
            raise ValueError(f"`apply` gives a {type(found).__name__}, expected a Pillow image")
        size = before.size if self.sides is None else self._sides()[::-1]
        if found.mode != before.mode or found.size != size:
            is_as = f"{found.size[1]} x {found.size[0]} in mode {found.mode}"
            raise ValueError(
                f"`apply` gives a picture of {is_as}, expected {size[1]} x {size[0]} in mode {before.mode}"
            )
        return found

    def _check_size(self, size: Size, channels: int) -> ShapeError | None:
        """Call the user's code on a generated image of this size. Return an error if the call fails, draws random
        numbers without declaring it, or gives two different results for the same image; otherwise None."""
        from declarative_train.components.plugin_layer import read_random_states, seed_generators

        made = _make_picture(size, channels, self.on_numbers)
        with seed_generators(1):
            before = read_random_states()
            try:
                ways = [self._apply_one(made, Drawn(_KEY, 1)) for _ in range(2)]
            except ValueError as error:
                hint = (
                    "a class that changes the size declares `size = (height, width)`"
                    if "`apply` gives" in str(error)
                    else None
                )
                return ShapeError(f"`{self.type}` fails on a generated image: {error}", field="type", help=hint)
            draws = read_random_states() != before
        if draws:
            message = f"`{self.type}` draws random numbers, but does not declare it"
            hint = "use the generator: `def apply(self, picture, random)`; or declare `is_random = True`"
            return ShapeError(message, field="type", help=hint)
        if not _same(*ways):
            message = f"`{self.type}` changes the same image differently in a second call"
            return ShapeError(message, field="type", help="draw only from `random`: `def apply(self, picture, random)`")
        return None

    def _get_object(self) -> Any:
        if self._object is None:
            self._object, _ = make_seeded(self)
        return self._object


def _is_side(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _copy(value: Any) -> Any:
    """Return a copy of an image or array, so that the user's code may change it."""
    return value.copy()


def _make_picture(size: Size, channels: int, are_numbers: bool) -> Any:
    import numpy as np
    from PIL import Image

    height, width = size[0] or _TRIED, size[1] or _TRIED
    draws = np.random.default_rng(1)
    if are_numbers:
        return draws.random((channels, height, width), np.float32)
    pixels = draws.integers(0, 256, (height, width, channels), np.uint8)
    return Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels)


def _same(one: Any, other: Any) -> bool:
    import numpy as np

    return bool(np.array_equal(np.asarray(one), np.asarray(other), equal_nan=True))
