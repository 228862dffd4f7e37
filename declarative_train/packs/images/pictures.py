"""Reading of images for a batch: they are decoded, changed by the transforms in order, and converted to arrays.

Random numbers depend only on (seed, epoch, sample, position of the transform in the list). They do not depend on the
rank, the loader process or the other samples of the batch. A resumed run draws the same ones as an uninterrupted run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from declarative_train.components.component import ShapeError
from declarative_train.components.counter_rng import Drawn, key_of
from declarative_train.components.data import BadValueError, Column, Field
from declarative_train.components.transform import Size, Transform
from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.data.lazy_fields import LazyFieldError, LazyReader, LazyValues, TransformError
from declarative_train.packs.images.boxes import Boxes, BoxesField
from declarative_train.packs.images.transforms.sizes import same_size, scaling

if TYPE_CHECKING:
    from declarative_train.packs.images.image import PictureField


class PictureValues(NamedTuple):
    """Field of images or boxes, with the column that it reads and N values of this column. `classes`: for boxes, the
    column of their classes and its N values; None if the field has no such column."""

    field: PictureField | BoxesField
    column: Column
    values: np.ndarray
    classes: tuple[Column, np.ndarray] | None = None

    @classmethod
    def of(cls, given: LazyValues) -> PictureValues:
        classes = (given.columns[1], given.values[1]) if len(given.columns) > 1 else None
        return cls(cast("PictureField | BoxesField", given.field), given.columns[0], given.values[0], classes)

    def boxes(self, row: int) -> Boxes:
        """Read the boxes of a row, with coordinates as in the file. Raises BadValueError."""
        assert isinstance(self.field, BoxesField)
        columns = (self.column,) if self.classes is None else (self.column, self.classes[0])
        labels = None if self.classes is None else self.classes[1][row]
        return self.field.read(self.values[row], labels, columns, row)

    def glance(self, row: int, whole: bool) -> int:
        """Check that a row can be read. `whole`: decode the whole image, not only its header. Return the size of the
        image's file in bytes, 0 for boxes. Raises BadValueError and MissingPackageError."""
        if isinstance(self.field, BoxesField):
            self.boxes(row)
            return 0
        if whole:
            self.field.decode_whole(self.values[row], self.column, row)
        else:
            self.field.check_header(self.values[row], self.column, row)
        return self.field.size_bytes(self.values[row], self.column, row)


class Pictures(LazyReader):
    """Reader of images, masks and boxes from files, which applies the transforms of the data section to them."""

    def spec(self, name: str, field: Field, columns: Sequence[Column]) -> TensorSpec:
        if isinstance(field, BoxesField):
            self._check_boxes(name, field)
            return field.row_spec(columns, {})
        return self._spec_of_pictures(name, field_of_pictures(field), columns[0])

    def _check_boxes(self, name: str, field: BoxesField) -> None:
        for place, transform in enumerate(self.transforms):
            shape_error = None
            if transform.changes(field.picture) and not transform.moves:
                shape_error = _find_box_error(transform)
            elif transform.fields is not None and name in transform.fields and field.picture not in transform.fields:
                hint = f"list `{field.picture}`, with which they are moved"
                shape_error = ShapeError(
                    f"`{name}` are boxes, which only move together with their image", field="fields", help=hint
                )
            if shape_error is not None:
                raise TransformError(place, shape_error)

    def _spec_of_pictures(self, name: str, field: PictureField, column: Column) -> TensorSpec:
        ways = [self._spec(name, field, column, in_training) for in_training in (True, False)]
        sizes = [spec.shape[-2:] for spec in ways]
        if sizes[0] != sizes[1]:
            said = " and ".join(
                f"{'each its own size' if 0 in size else f'{size[0]} x {size[1]}'} {where}"
                for size, where in zip(sizes, ("in training", "in evaluations"), strict=True)
            )
            hint = (
                "bring both to the same size: a `resize` or crop with `only: training`, and one with `only: evaluation`"
            )
            raise TransformError(None, ShapeError(f"its images have {said}", help=hint))
        if 0 in sizes[0]:
            hint = "set one: `size: 224`, or a transform that crops"
            raise TransformError(None, ShapeError("its images have no common size", help=hint))
        if field.is_mask:
            return ways[0]
        if not all(spec.intervals for spec in ways):
            return TensorSpec(ways[0].shape)
        ends = [end for spec in ways for end in spec.intervals]
        return ways[0].between([(min(low for low, _ in ends), max(high for _, high in ends))])

    def _spec(self, name: str, field: PictureField, column: Column, in_training: bool) -> TensorSpec:
        size: Size = field.size_of(column)
        interval, are_numbers = (0.0, 1.0), False
        for place, transform in enumerate(self.transforms):
            if not transform.acts(in_training) or not transform.changes(name):
                continue
            if field.is_mask and not transform.moves:
                if (shape_error := _find_mask_error(transform)) is not None:
                    raise TransformError(place, shape_error)
                continue
            shape_error = None if field.is_mask else transform.check(size, field.channels)
            if shape_error is None and are_numbers and not transform.on_numbers:
                shape_error = ShapeError(
                    f"`{transform.type}` changes images, but an entry above has converted them to numbers",
                    field="type",
                    help="put it before `normalize` and `random_erasing`",
                )
            if shape_error is not None:
                raise TransformError(place, shape_error)
            are_numbers |= transform.on_numbers
            size, interval = transform.size_after(size), transform.interval_after(interval, field.channels)
        return field.spec_of_size(size, interval)

    def glance(self, given: LazyValues, row: int, *, whole: bool) -> int:
        return PictureValues.of(given).glance(row, whole)

    def arrays(
        self,
        given: Mapping[str, LazyValues],
        shapes: Mapping[str, tuple[int, ...]],
        keys: np.ndarray,
        epoch: int | None,
    ) -> dict[str, np.ndarray]:
        """Return a dict from the name of each field to its array: (N, C, H, W) for images, (N, H, W) for masks, (N,
        length, ...) for boxes.

        given   values of N samples, by field
        shapes  shape of one sample, by field
        keys    number of each sample, on which its random numbers depend
        epoch   number of the epoch; None: an evaluation, in which random transforms are not applied"""
        steps = [
            (key_of("transform", self.seed, epoch, place), transform)
            for place, transform in enumerate(self.transforms)
            if transform.acts(epoch is not None)
        ]
        values = {name: PictureValues.of(each) for name, each in given.items()}
        found = {name: np.empty((len(keys), *shapes[name]), each.field.dtype) for name, each in values.items()}
        for row, key in enumerate(keys.tolist()):
            for name, value in self._sample(values, steps, row, key).items():
                found[name][row] = value
        return found

    def _sample(
        self, given: Mapping[str, PictureValues], steps: Sequence[tuple[int, Transform]], row: int, key: int
    ) -> dict[str, np.ndarray]:
        of_boxes = {name: each for name, each in given.items() if isinstance(each.field, BoxesField)}
        given = {name: each for name, each in given.items() if name not in of_boxes}
        whole = whole_pictures(given, row)
        values: dict[str, Any] = {name: _field(given[name]).resize_picture(each) for name, each in whole.items()}
        boxes = place_boxes(of_boxes, {name: (_size(whole[name]), _size(each)) for name, each in values.items()}, row)
        for step_key, transform in steps:
            named = [name for name in given if transform.changes(name)]
            names = [name for name in named if not _is_mask(given[name])]
            masks = [name for name in named if _is_mask(given[name]) and transform.moves]
            before = {name: _size(values[name]) for name in named}
            if transform.on_numbers:
                values |= {name: _numbers(_field(given[name]), values[name]) for name in names}
            try:
                if masks and transform.is_random:
                    same_size([values[name] for name in (*names, *masks)])
                changed = transform.apply([values[name] for name in names], Drawn(step_key, key)) if names else []
                if masks:  # the same random numbers as for the images
                    changed += transform.apply_to_masks([values[name] for name in masks], Drawn(step_key, key))
                values |= dict(zip((*names, *masks), changed, strict=True))
                for picture in boxes.keys() & set(named):
                    moved = transform.motions(before[picture], Drawn(step_key, key)) if transform.moves else ()
                    boxes[picture] = {base: each.move(moved) for base, each in boxes[picture].items()}
                    if any(each.size != _size(values[picture]) for each in boxes[picture].values()):
                        raise ValueError(f"it changes the size of `{picture}` without defining how boxes move")
            except (ValueError, OSError) as error:
                message = f"`{transform.type}` cannot change it: {error}"
                cause = BadValueError("unreadable", given[named[0]].column.name, message, row=row)
                raise LazyFieldError(named[0], row, cause) from error
        found = {name: _numbers(_field(each), values[name]) for name, each in given.items()}
        for name, each in of_boxes.items():
            field = cast("BoxesField", each.field)
            found[name] = field.to_array(boxes[field.picture][_base(name)])
        return found


def whole_pictures(given: Mapping[str, PictureValues], row: int) -> dict[str, Any]:
    """Return the images of a row as Pillow images, by field, in the sizes that they have in the file. Raises
    LazyFieldError."""
    found = {}
    for name, each in given.items():
        if isinstance(each.field, BoxesField):
            continue
        try:
            found[name] = each.field.decode_whole(each.values[row], each.column, row)
        except BadValueError as error:
            raise LazyFieldError(name, row, error) from error
    return found


def place_boxes(
    given: Mapping[str, PictureValues], sizes: Mapping[str, tuple[tuple[int, int], tuple[int, int]]], row: int
) -> dict[str, dict[str, Boxes]]:
    """Return the boxes of a row before the transforms, as {image field: {box field: boxes in this image}}.

    `given`: {output of a box field: its values}. All outputs of a field (boxes, mask, labels) have the same boxes.
    `sizes`: {image field: (size of the image in the file, size after resizing to the field's `size`)}. Raises
    LazyFieldError.
    """
    found: dict[str, dict[str, Boxes]] = {}
    for name, each in given.items():
        field = cast("BoxesField", each.field)
        of_picture = found.setdefault(field.picture, {})
        if _base(name) in of_picture:
            continue
        try:
            own, brought_to = sizes[field.picture]
            read = field.clip_to_picture(each.boxes(row), own, each.column, row)
            of_picture[_base(name)] = read if own == brought_to else read.move([scaling(own, brought_to)])
        except BadValueError as error:
            raise LazyFieldError(name, row, error) from error
    return found


def _base(name: str) -> str:
    return name.partition(".")[0]


def _field(given: PictureValues) -> PictureField:
    return field_of_pictures(given.field)


def _is_mask(given: PictureValues) -> bool:
    return _field(given).is_mask


def _size(value: Any) -> tuple[int, int]:
    """Return (height, width) of a Pillow image or of an array (C, H, W)."""
    if isinstance(value, np.ndarray):
        return int(value.shape[-2]), int(value.shape[-1])
    return int(value.height), int(value.width)


def field_of_pictures(field: object) -> PictureField:
    """Return `field` unchanged, with the static type PictureField."""
    return cast("PictureField", field)


def _find_mask_error(transform: Transform) -> ShapeError | None:
    """Return an error if a transform cannot be applied to masks, or to images that have masks; otherwise None."""
    if transform.of_pairs and not getattr(transform, "of_pictures", False):
        message = f"`{transform.type}` mixes images, but classes of a mask cannot be averaged"
        return ShapeError(message, field="type", help="use `cutmix`, which pastes parts of masks as well")
    if transform.moves is None and transform.fields is None:
        message = f"it is unknown whether `{transform.type}` moves the content of an image, and so of its mask"
        return ShapeError(message, field="type", help="list the images that it changes: `fields: [IMAGE]`")
    if transform.fields is not None and not transform.of_pairs:
        message = f"`{transform.type}` does not change a mask"
        return ShapeError(message, field="fields", help="list fields of `type: image`, or remove `fields`")
    return None


def _find_box_error(transform: Transform) -> ShapeError | None:
    """Return an error if a transform cannot be applied to images that have boxes, because it is unknown how the boxes
    would change; otherwise None."""
    if transform.of_pairs:
        message = f"`{transform.type}` mixes images, but boxes belong to one of them"
        return ShapeError(message, field="type", help="remove it, or list other fields")
    if transform.moves is None and transform.fields is None:
        message = f"it is unknown whether `{transform.type}` moves the content of an image, and so its boxes"
        return ShapeError(message, field="type", help="list the images that it changes: `fields: [IMAGE]`")
    return None


def _numbers(field: PictureField, value: Any) -> np.ndarray:
    return value if isinstance(value, np.ndarray) else field.numbers(value)
