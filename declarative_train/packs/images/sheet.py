"""Sheet of images from all parts of a recipe's training set. It shows each image as in the file, as in three epochs of
training, and as in an evaluation."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from declarative_train.components.transforms import TRANSFORMS
from declarative_train.data.lazy_fields import LazyFieldError
from declarative_train.data.prepared_set import PreparedSet
from declarative_train.data.shared_sets import prepare_sets
from declarative_train.data.spec import DataSpec
from declarative_train.data.split_rows import TRAINING
from declarative_train.packs.images.boxes import BoxesField
from declarative_train.packs.images.pictures import (
    PictureValues,
    field_of_pictures,
    place_boxes,
    whole_pictures,
)

if TYPE_CHECKING:
    from PIL.Image import Image

    from declarative_train.packs.images.image import PictureField

_ROWS = 8
_CELL, _GAP, _HEAD = 128, 8, 28
_OUTLINE = (230, 60, 30)
_HEADS = ("decoded", "epoch 1", "epoch 2", "epoch 3", "evaluation")


def picture_sheet(data: DataSpec) -> bytes | None:
    """Return the sheet of images as the content of a PNG file; None for a recipe without images. Raises DataError,
    SourceError and BadSampleError."""
    training = prepare_sets(data)[TRAINING]
    if not training.lazy:
        return None
    chosen = np.linspace(0, training.num_samples - 1, min(_ROWS, training.num_samples)).astype(np.int64)
    given = _pictures(training, chosen)
    if training.skips is not None:
        chosen = chosen[[row for row in range(len(chosen)) if _can_decode(given, row)]]
        given = _pictures(training, chosen)
    plain = _remove_normalising(training)
    boxes = {reader.name: reader.field for reader in training.lazy if isinstance(reader.field, BoxesField)}
    boxes = {name: field for name, field in boxes.items() if field.output == "boxes"}
    names = [reader.name for reader in training.lazy if not reader.field.takes_lists]
    ways = [plain.gather(chosen, [*names, *boxes], epoch) for epoch in (0, 1, 2, None)]
    from PIL import Image, ImageDraw, ImageFont

    width = _GAP + (_CELL + _GAP) * len(_HEADS)
    sheet = Image.new("RGB", (width, _HEAD + (_CELL + _GAP) * len(chosen) * len(names)), (255, 255, 255))
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default()
    for column, head in enumerate(_HEADS):
        draw.text((_GAP + column * (_CELL + _GAP), 8), head, fill=(20, 20, 20), font=font)
    for row in range(len(chosen)):
        whole = whole_pictures(given, row)
        before = {name: _field(given[name]).resize_picture(each) for name, each in whole.items()}
        sizes = {name: ((each.height, each.width), before[name].size[::-1]) for name, each in whole.items()}
        first_boxes = place_boxes({name: given[name] for name in boxes}, sizes, row)
        for at, name in enumerate(names):
            top = _HEAD + (row * len(names) + at) * (_CELL + _GAP)
            first = _field(given[name]).numbers(before[name]) if _field(given[name]).is_mask else None
            most = max([1, *(way[name].max() for way in ways if first is not None)])
            cells = [
                before[name].convert("RGB") if first is None else _picture(first[None] / most),
                *(_picture(way[name][row] if first is None else way[name][row][None] / most) for way in ways),
            ]
            mine = {each: field for each, field in boxes.items() if field.picture == name}
            for column, cell in enumerate(cells):
                left = _GAP + column * (_CELL + _GAP)
                scale = _place(sheet, cell, left, top)
                for each, field in mine.items():
                    size = cell.height, cell.width
                    corners = (
                        field.corners(ways[column - 1][each][row], size) if column else first_boxes[name][each].corners
                    )
                    for box in corners * scale + [left, top, left, top]:
                        draw.rectangle([*box[:2], *np.maximum(box[2:] - 1, box[:2])], outline=_OUTLINE, width=2)
    stream = io.BytesIO()
    sheet.save(stream, "PNG")
    return stream.getvalue()


def _pictures(training: PreparedSet, samples: np.ndarray) -> dict[str, PictureValues]:
    return {name: PictureValues.of(each) for name, each in training.read_columns(samples).items()}


def _can_decode(given: Mapping[str, PictureValues], row: int) -> bool:
    """Return whether all images of a row can be decoded."""
    try:
        whole_pictures(given, row)
    except LazyFieldError:
        return False
    return True


def _remove_normalising(training: PreparedSet) -> PreparedSet:
    """Return the training set with each transform `normalize` replaced by one that changes nothing. Its values are then
    from 0 to 1, as colours need. Random draws stay the same."""
    same = TRANSFORMS.read({"type": "normalize", "mean": [0.0], "std": [1.0]})
    chain = training.chain
    kept = tuple(
        same.model_copy(update={"fields": each.fields, "only": each.only}) if each.type == "normalize" else each
        for each in chain.transforms
    )
    return replace(training, chain=replace(chain, transforms=kept))


def _picture(values: np.ndarray) -> Image:
    """Convert an array (C, H, W) of values from 0 to 1 to a Pillow image without alpha."""
    from PIL import Image

    pixels = np.clip(np.rint(values * 255), 0, 255).astype(np.uint8)
    return Image.fromarray(pixels[0] if len(pixels) == 1 else pixels[:3].transpose(1, 2, 0)).convert("RGB")


def _field(given: PictureValues) -> PictureField:
    return field_of_pictures(given.field)


def _place(sheet: Image, picture: Image, left: int, top: int) -> float:
    """Paste the picture, scaled to the size of a cell, into the sheet at (`left`, `top`). Return the scale: pixels of
    the sheet per pixel of the picture."""
    from PIL import Image

    scale = _CELL / max(picture.size)
    size: Any = tuple(max(1, round(side * scale)) for side in picture.size)
    method = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.BOX
    sheet.paste(picture.resize(size, method), (left, top))
    return scale
