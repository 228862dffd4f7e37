"""Field of bounding boxes. Its column has a list of boxes in each row. Its outputs are the boxes, float32 (length, 4),
a mask, and class numbers. The key `length` is the maximum number of boxes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field as Key
from pydantic import model_validator

from declarative_train.components.component import ShapeError
from declarative_train.components.data import LISTS, BadValueError, Column, Field, Tally
from declarative_train.components.transform import Motion
from declarative_train.core.amounts import format_count
from declarative_train.core.tensor_spec import DType, TensorSpec
from declarative_train.core.untrusted import parse_json

if TYPE_CHECKING:
    import numpy as np

Format = Literal["xyxy", "xywh", "cxcywh"]
Name = Annotated[str, Key(min_length=1)]
_BEYOND = 0.01  # fraction of a side (at least one pixel) by which a box may exceed its image; it is clipped then
_LEAST = 1e-6  # a box with a smaller fraction of its area inside is only at the edge, by rounding
_ORDER = {"xyxy": "left, top, right, bottom", "xywh": "left, top, width, height", "cxcywh": "middle, width, height"}


class Boxes(NamedTuple):
    """Boxes of one sample.

    corners  (N, 4) float64: left, top, right, bottom of each box
    classes  (N,) int64
    visible  (N,): fraction of each box's area that is still inside the image after the transforms
    size     (height, width) of the image if `corners` are in its pixels; None: `corners` have the unit of the file"""

    corners: np.ndarray
    classes: np.ndarray
    visible: np.ndarray
    size: tuple[int, int] | None = None

    def move(self, motions: Sequence[Motion]) -> Boxes:
        """Return the boxes after applying the motions in order. After each motion, a box is the smallest upright
        rectangle around the moved box, clipped to the image."""
        import numpy as np

        found = self
        for matrix, size in motions:
            a, b, c, d, e, f = matrix
            x, y = found.corners[:, [0, 2, 2, 0]], found.corners[:, [1, 1, 3, 3]]
            across, down = a * x + b * y + c, d * x + e * y + f
            around = np.stack([across.min(1), down.min(1), across.max(1), down.max(1)], 1)
            inside, share = _clip(around, size)
            found = Boxes(inside, found.classes, found.visible * share, size)
        return found


class BoxesField(Field):
    """Bounding boxes of a picture, float32 of shape (length, 4). Transforms move the boxes together with the picture,
    clip them at its edges, and drop boxes of which nothing is left. The boxes come first, padding last.

    `NAME.mask` is true where there is a box. `NAME.labels` are the numbers of their classes, int64 of shape (length,).
    In padding they are the number after the last class, which a loss can ignore: with 20 classes `ignore_index: 20`.
    """

    meaning: ClassVar[tuple[str, ...]] = ("num_classes", "values", "out_format", "out_relative")
    outputs: ClassVar[tuple[str, ...]] = ("boxes", "mask", "labels")
    lazy: ClassVar[str] = "declarative_train.packs.images.pictures:Pictures"
    takes_lists: ClassVar[bool] = True

    type: Literal["boxes"] = "boxes"
    column: Name
    """Column of lists of boxes, four numbers each. A list of four numbers is one box, an empty list none."""
    picture: Name = "image"
    """Field of the pictures that the boxes are in."""
    labels: Name | None = None
    """Column of lists with the class of each box, numbers or texts; left out: all boxes are of class 0."""
    num_classes: Annotated[int, Key(ge=1)] | None = None
    """Number of classes: they go from 0 to this - 1. Needed with `labels`, unless `values` are given."""
    values: Annotated[tuple[int | Name, ...], Key(min_length=1)] | None = None
    """Value in `labels` for class 0, 1, ...: `[cat, dog]`, or numbers, which need not be consecutive."""
    format: Format = "xyxy"
    """Meaning of the four numbers. `xyxy`: left, top, right and bottom; `xywh`: left, top, width and height; `cxcywh`:
    the middle (x, y), width and height. They count from the upper left corner of the picture, turned as its EXIF
    says."""
    relative: bool = False
    """True: the numbers are fractions of the picture's width and height, from 0 to 1; false: pixels of the file."""
    length: Annotated[int, Key(ge=1, le=65_536)]
    """Number of boxes per sample; samples with fewer are padded. A picture with more is an error."""
    pad: Annotated[float, Key(allow_inf_nan=False)] = 0.0
    """Value of the four numbers in padding. `NAME.mask` distinguishes padding from boxes."""
    min_visibility: Annotated[float, Key(ge=0, lt=1)] = 0.0
    """Least share of a box's area that must be inside the picture after transforms. Other boxes are dropped, with their
    classes."""
    out_format: Format = "xyxy"
    """Format of the boxes that the model gets, as in `format`."""
    out_relative: bool = True
    """True: the model gets fractions of the picture's width and height, from 0 to 1; false: pixels."""
    output: Literal["boxes", "mask", "labels"] = "boxes"
    """Output that `NAME` stands for; the others are `NAME.OUTPUT`."""

    @model_validator(mode="after")
    def _agrees(self) -> BoxesField:
        said = [key for key in ("num_classes", "values") if getattr(self, key) is not None]
        if self.labels is None and said:
            raise ValueError(f"`{said[0]}` is for classes, but no column has them: set `labels: COLUMN`")
        if self.labels is not None and len(said) != 1:
            raise ValueError("set the classes of `labels` by one of two keys: `num_classes`, or a list of `values`")
        if self.values is not None and len(set(self.values)) < len(self.values):
            raise ValueError("`values` names a class twice")
        return self

    @property
    def follows(self) -> str:
        return self.picture

    @property
    def wanted(self) -> tuple[str, ...]:
        return (self.column,) if self.labels is None else (self.column, self.labels)

    @property
    def cut(self) -> None:
        return None

    @property
    def dtype(self) -> DType:
        kinds: dict[str, DType] = {"boxes": "float32", "mask": "bool", "labels": "int64"}
        return kinds[self.output]

    @property
    def _num_classes(self) -> int:
        return len(self.values) if self.values is not None else self.num_classes or 1

    def output_of(self, name: str) -> BoxesField:
        return self.model_copy(update={"output": name})

    def check(self, columns: Sequence[Column]) -> ShapeError | None:
        boxes = columns[0]
        are_boxes = boxes.dtype == LISTS or (
            boxes.dtype.startswith(("int", "uint", "float")) and boxes.shape and boxes.shape[-1] == 4
        )
        if not are_boxes or len(boxes.shape) > 2:
            message = f"`{boxes.name}` holds {_describe(boxes)}, and boxes are lists of four numbers each"
            return ShapeError(message, field="column")
        for labels in columns[1:]:
            # lists of whole numbers that contain `null` are read as floats
            kinds = ("int", "uint") if not labels.shape else ("int", "uint", "float")
            if labels.dtype not in (LISTS, "object") and not labels.dtype.startswith(kinds):
                message = (
                    f"`{labels.name}` holds {_describe(labels)}, and the classes of boxes are whole numbers or texts"
                )
                return ShapeError(message, field="labels")
        return None

    def tally(self, columns: Sequence[Column]) -> Tally | None:
        return None

    def row_spec(self, columns: Sequence[Column], statistics: Mapping[str, object]) -> TensorSpec:
        if self.output == "mask":
            return TensorSpec((self.length,), "bool")
        if self.output == "labels":
            return TensorSpec((self.length,), "int64").between([(0, self._num_classes)])
        spec = TensorSpec((self.length, 4))
        return spec.between([(min(0.0, self.pad), max(1.0, self.pad))]) if self.out_relative else spec

    def convert(
        self, values: Sequence[np.ndarray], columns: Sequence[Column], statistics: Mapping[str, object]
    ) -> np.ndarray:
        raise TypeError("boxes are made together with their picture")

    def read(self, value: Any, labels: Any, columns: Sequence[Column], row: int = 0) -> Boxes:
        """Read the boxes of one row, with coordinates as in the file. `value`: the row's list of boxes. `labels`: their
        classes; None if the field has no classes. `columns`: the field's columns. `row`: number of the row, for
        messages. Raises BadValueError."""
        import numpy as np

        name = columns[0].name
        numbers = self._numbers(value, name, row)
        if len(numbers) > self.length:
            message = f"`{name}` has {format_count(len(numbers), 'box')}, and `length` is {self.length:,}"
            raise BadValueError("outside", name, message, row=row, key="length", help="set `length` to the most boxes")
        corners = _to_corners(numbers, self.format)
        low = np.flatnonzero(~((corners[:, 2] > corners[:, 0]) & (corners[:, 3] > corners[:, 1])))
        if low.size:
            said = ", ".join(f"{number:g}" for number in numbers[low[0]])
            message = f"`{name}` has a box ({said}), which as {_ORDER[self.format]} has no area"
            hint = "correct or remove the box, or set `format` to what the numbers mean"
            raise BadValueError("outside", name, message, row=row, key="format", help=hint)
        classes = np.zeros(len(numbers), np.int64)
        if self.labels is not None:
            classes = self._classes(labels, len(numbers), columns[1], row)
        return Boxes(corners, classes, np.ones(len(numbers)))

    def _numbers(self, value: Any, name: str, row: int) -> np.ndarray:
        """Return the numbers of a row's boxes as they are in the file, (N, 4) float64. `value`: the row's list of
        boxes; `name`: the column. Raises BadValueError for a value of another form."""
        import numpy as np

        if value is None:
            hint = "write an empty list for a picture without boxes"
            raise BadValueError("missing", name, f"`{name}` has no list of boxes", row=row, help=hint)
        try:
            found = np.asarray(parse_json(value) if isinstance(value, str) else value, np.float64)
        except (TypeError, ValueError):
            found = np.zeros(1)  # lists of different lengths
        if found.size == 0:
            return np.zeros((0, 4))
        found = found[None] if found.ndim == 1 else found
        if found.ndim != 2 or found.shape[1] != 4:
            raise BadValueError("unreadable", name, f"`{name}` has a box that is not four numbers", row=row)
        if not np.isfinite(found).all():
            raise BadValueError("missing", name, f"`{name}` has a box with a missing or infinite number", row=row)
        return found

    def _classes(self, value: Any, count: int, column: Column, row: int) -> np.ndarray:
        """Return the class numbers of a row's `count` boxes, (N,) int64. `value`: the classes in the file, a list or
        the class of a single box. Raises BadValueError."""
        import numpy as np

        name = column.name
        if value is None:
            raise BadValueError("missing", name, f"`{name}` has no classes for the boxes", row=row)
        given = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
        if column.dtype == LISTS:
            given = json.loads(given)
        listed = given if isinstance(given, list) else [given]
        if len(listed) != count:
            message = f"`{name}` has {format_count(len(listed), 'class')} for {format_count(count, 'box')}"
            raise BadValueError("outside", name, message, row=row)
        known = range(self._num_classes) if self.values is None else self.values
        for each in listed:
            if each not in known:
                what = "not in `values`" if self.values is not None else f"none of {self._num_classes} classes"
                key = "values" if self.values is not None else "num_classes"
                raise BadValueError("outside", name, f"`{name}` has `{each}`, which is {what}", row=row, key=key)
        return np.asarray([known.index(each) for each in listed], np.int64)

    def clip_to_picture(self, boxes: Boxes, size: tuple[int, int], column: Column, row: int = 0) -> Boxes:
        """Return the boxes clipped to their image, in pixels of the image in the file. `size`: (height, width) of this
        image. Raises BadValueError if the numbers seem to be in another unit or format than the field says."""
        import numpy as np

        sides = np.asarray([size[1], size[0], size[1], size[0]], np.float64)
        corners = boxes.corners * sides if self.relative else boxes.corners
        beyond = np.maximum(-corners, corners - sides).max(1) if len(corners) else np.zeros(0)
        if (beyond > max(1.0, _BEYOND * max(size))).any():
            said = ", ".join(f"{number:g}" for number in boxes.corners[int(beyond.argmax())])
            message = f"`{column.name}` has a box from ({said}) that reaches out of its picture, {size[0]} x {size[1]}"
            hint = "remove `relative` for pixels" if self.relative else "set `format` to what the numbers mean"
            raise BadValueError("outside", column.name, message, row=row, help=hint)
        if len(corners) and not self.relative and corners.max() <= 1.0 and max(size) > 1:
            message = f"`{column.name}` has no box that reaches beyond the first pixel"
            hint = "if the numbers are fractions of the picture's sides: `relative: true`"
            raise BadValueError("outside", column.name, message, row=row, help=hint)
        inside, _ = _clip(corners, size)
        return Boxes(inside, boxes.classes, boxes.visible, size)

    def drop_hidden(self, boxes: Boxes) -> Boxes:
        """Return only the boxes whose visible fraction is at least the field's key `min_visibility`."""
        is_kept = boxes.visible >= max(self.min_visibility, _LEAST)
        return Boxes(boxes.corners[is_kept], boxes.classes[is_kept], boxes.visible[is_kept], boxes.size)

    def to_array(self, boxes: Boxes) -> np.ndarray:
        """Return the array for the field's output (boxes, mask or labels), padded to `length` boxes."""
        import numpy as np

        found, count = self.drop_hidden(boxes), 0
        count = len(found.corners)
        if self.output == "mask":
            return np.arange(self.length) < count
        if self.output == "labels":
            classes = np.full(self.length, self._num_classes, np.int64)
            classes[:count] = found.classes
            return classes
        numbers = np.full((self.length, 4), self.pad, np.float32)
        height, width = boxes.size or (1, 1)
        scale = np.asarray([width, height] * 2, np.float64) if self.out_relative else 1.0
        numbers[:count] = _convert_corners(found.corners / scale, self.out_format)
        return numbers

    def corners(self, values: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        """Return the corners (N, 4) of boxes in pixels of an image of `size` (height, width). `values`: (length, 4),
        the field's tensor for one sample; its padding is left out."""
        import numpy as np

        found = _to_corners(values[~(values == np.float32(self.pad)).all(1)].astype(np.float64), self.out_format)
        return found * np.asarray([size[1], size[0]] * 2) if self.out_relative else found


def _to_corners(numbers: np.ndarray, format: Format) -> np.ndarray:
    """Convert boxes (N, 4) in the format `format` to left, top, right, bottom."""
    import numpy as np

    if format == "xyxy":
        return numbers
    first, sides = numbers[:, :2], numbers[:, 2:]
    first = first - sides / 2 if format == "cxcywh" else first
    return np.concatenate([first, first + sides], 1)


def _convert_corners(corners: np.ndarray, format: Format) -> np.ndarray:
    import numpy as np

    if format == "xyxy":
        return corners
    sides = corners[:, 2:] - corners[:, :2]
    first = (corners[:, :2] + corners[:, 2:]) / 2 if format == "cxcywh" else corners[:, :2]
    return np.concatenate([first, sides], 1)


def _clip(corners: np.ndarray, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Clip boxes to an image of `size` (height, width). Return the clipped boxes, and the fraction of each box's area
    that was inside."""
    import numpy as np

    inside = np.clip(corners, 0.0, [size[1], size[0], size[1], size[0]])
    left, whole = (np.prod(each[:, 2:] - each[:, :2], axis=1) for each in (inside, corners))
    return inside, np.divide(left, whole, out=np.zeros(len(corners)), where=whole > 0)


def _describe(column: Column) -> str:
    if column.dtype == "object":
        return "text"
    return f"{column.dtype} of shape {column.shape}" if column.shape else column.dtype
