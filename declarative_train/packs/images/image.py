"""Field of images: a column of image files becomes float32 (C, H, W), from 0 to 1. An image is decoded when its sample
is read."""

from __future__ import annotations

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache
from io import BytesIO
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field as Key

from declarative_train.components.component import ShapeError
from declarative_train.components.data import BadValueError, Column, Field, MissingPackageError, Tally
from declarative_train.components.transform import Size
from declarative_train.core.machine import install
from declarative_train.core.tensor_spec import DType, TensorSpec
from declarative_train.packs.images.transforms.sizes import Method, Sides, resize, sides

if TYPE_CHECKING:
    import numpy as np

CHANNELS = {"L": 1, "RGB": 3, "RGBA": 4}
_ORIENTATION = 0x0112  # EXIF's tag


@cache
def pillow_image() -> Any:
    """Return Pillow's module `Image`, with its warning about images of more than 89 million pixels turned off. (Pillow
    raises an error for images twice as large; these are reported as unreadable.) Raises ImportError."""
    from PIL import Image

    warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
    return Image


class PictureField(Field, ABC):
    """Base class of fields that read image files. A file is decoded when its sample is read; after the transforms,
    `numbers` converts the image to an array."""

    lazy: ClassVar[str] = "declarative_train.packs.images.pictures:Pictures"
    dtype: ClassVar[DType] = "float32"
    is_mask: ClassVar[bool] = False

    column: Annotated[str, Key(min_length=1)]
    """Column of files (`image` of an image_folder, bytes in Parquet), paths of files, or uint8 arrays (H, W) or (H, W,
    C)."""
    size: Sides | None = None
    """Height and width that every picture is resized to, whatever its shape; a number: a square."""
    folder: Annotated[str, Key(min_length=1)] | None = None
    """Folder that paths in `column` are relative to. It is itself relative to the recipe's file."""

    @property
    def wanted(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def cut(self) -> None:
        return None

    @property
    @abstractmethod
    def channels(self) -> int: ...

    @property
    @abstractmethod
    def filter(self) -> Method:
        """Filter of Pillow with which images are resized to the field's `size`."""

    @abstractmethod
    def spec_of_size(self, size: Size, interval: tuple[float, float]) -> TensorSpec:
        """Return the TensorSpec of an image of this (height, width). A side that differs between images is None in
        `size`, and 0 in the spec. `interval`: range of the numbers."""

    @abstractmethod
    def decode(self, picture: Any, column: Column, row: int) -> Any:
        """Return a copy of an opened Pillow image as the transforms read it: turned upright, and converted to the
        field's colour mode (images) or class numbers (masks). Raises BadValueError or ValueError if the field does not
        accept the image."""

    @abstractmethod
    def numbers(self, picture: Any) -> np.ndarray: ...

    def tally(self, columns: Sequence[Column]) -> Tally | None:
        return None

    def size_of(self, column: Column) -> Size:
        """Return the (height, width) that all images of the column have before the transforms. None stands for a side
        that differs between images."""
        if self.size is not None:
            return sides(self.size)
        return (column.shape[0], column.shape[1]) if column.shape else (None, None)

    def row_spec(self, columns: Sequence[Column], statistics: Mapping[str, object]) -> TensorSpec:
        """Return the TensorSpec of an image before the transforms."""
        return self.spec_of_size(self.size_of(columns[0]), (0.0, 1.0))

    def convert(
        self, values: Sequence[np.ndarray], columns: Sequence[Column], statistics: Mapping[str, object]
    ) -> np.ndarray:
        """Decode images and return them as one array, without transforms. All images must have the same size."""
        import numpy as np

        found = [self.numbers(self.picture(value, columns[0], row)) for row, value in enumerate(values[0])]
        return np.stack(found)

    def picture(self, value: Any, column: Column, row: int = 0) -> Any:
        """Decode one value of the column to a Pillow image, resized to the field's `size`, for the transforms. Raises
        BadValueError and MissingPackageError."""
        return self.resize_picture(self.decode_whole(value, column, row))

    def resize_picture(self, picture: Any) -> Any:
        return picture if self.size is None else resize(picture, *sides(self.size), self.filter)

    def decode_whole(self, value: Any, column: Column, row: int = 0) -> Any:
        """Decode one value of the column to a Pillow image, in the size that it has in the file."""
        try:
            with self._open(value, column, row) as opened:
                opened.load()
                found = self.decode(opened, column, row)
        except (BadValueError, MissingPackageError):
            raise
        except Exception as error:  # each file format raises other exceptions for a damaged file
            raise _decode_error(column, row, error) from error
        return found

    def check_header(self, value: Any, column: Column, row: int) -> None:
        """Read only the header of an image file. Raises BadValueError if it cannot be read, and MissingPackageError."""
        try:
            self._open(value, column, row).close()
        except (BadValueError, MissingPackageError):
            raise
        except Exception as error:
            raise _decode_error(column, row, error) from error

    def size_bytes(self, value: Any, column: Column, row: int) -> int:
        """Return the size of an image file in bytes; 0 if the value is an array. Raises BadValueError if it cannot be
        opened."""
        if isinstance(value, bytes):
            return len(value)
        return os.path.getsize(self._path(value, column, row)) if isinstance(value, str) else 0

    def _open(self, value: Any, column: Column, row: int) -> Any:
        try:
            Image = pillow_image()
        except ImportError:
            raise MissingPackageError(f"pictures need the package Pillow; help: {install('images')}") from None
        if value is None:
            raise BadValueError("missing", column.name, f"`{column.name}` has no picture", row=row)
        if isinstance(value, OSError):
            raise value
        if column.shape:
            return Image.fromarray(value[:, :, 0] if value.ndim == 3 and value.shape[2] == 1 else value)
        if isinstance(value, Image.Image):  # given by a caller of the Python API, who may use it again
            return value.copy()
        return Image.open(BytesIO(value) if column.dtype == "bytes" else self._path(value, column, row))

    def _path(self, value: str, column: Column, row: int) -> str:
        if os.path.isabs(value):
            return value
        if self.folder is None:
            message = f"`{column.name}` is the relative path `{value}`, and the field has no `folder`"
            hint = "name the folder that it is relative to: `folder: data/pictures`"
            raise BadValueError("unreadable", column.name, message, row=row, help=hint)
        return os.path.join(self.folder, value)


class ImageField(PictureField):
    """Pictures, float32 of shape (C, H, W), from 0 (dark) to 1. Pillow decodes a picture when its sample is read, turns
    it as its EXIF says, and converts it to `mode` and `size`. The `transforms` follow.

    Without `size`, transforms must bring all pictures to one size.
    """

    meaning: ClassVar[tuple[str, ...]] = ("mode",)

    type: Literal["image"] = "image"
    mode: Literal["L", "RGB", "RGBA"] = "RGB"
    """Channels: L is grey, RGB drops transparency. 16 bits per channel become 8."""
    method: Method = "bilinear"
    """Pillow's filter for `size`; all except `nearest` use every pixel of a picture that is made smaller."""

    @property
    def channels(self) -> int:
        return CHANNELS[self.mode]

    @property
    def filter(self) -> Method:
        return self.method

    def needs_value(self, column: Column) -> bool:
        return column.dtype == "object"

    def check(self, columns: Sequence[Column]) -> ShapeError | None:
        column = columns[0]
        if column.dtype in ("bytes", "object") and not column.shape:
            return None
        if column.dtype == "uint8" and len(column.shape) in (2, 3) and _is_picture(column.shape):
            return None
        found = f"{column.dtype} of shape {column.shape}" if column.shape else column.dtype
        found = "dates" if column.dtype.startswith("datetime") else found
        message = f"`{column.name}` holds {found}, and pictures are files, paths, or uint8 arrays (H, W) or (H, W, C)"
        hint = "for numbers that are not pictures use `type: tensor`" if column.shape else None
        return ShapeError(message, field="column", help=hint)

    def spec_of_size(self, size: Size, interval: tuple[float, float]) -> TensorSpec:
        return TensorSpec((self.channels, size[0] or 0, size[1] or 0)).between([interval])

    def decode(self, picture: Any, column: Column, row: int) -> Any:
        return _convert_mode(turn_upright(picture), self.mode)

    def numbers(self, picture: Any) -> np.ndarray:
        """Convert a transformed Pillow image to a float32 array (C, H, W) with values from 0 to 1."""
        import numpy as np

        values = np.asarray(picture)
        channels_first = values[None] if values.ndim == 2 else values.transpose(2, 0, 1)
        found: np.ndarray = np.multiply(channels_first, np.float32(1 / 255), dtype=np.float32, order="C")
        return found


def _is_picture(shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 or shape[2] in (1, 3, 4)


def turn_upright(picture: Any) -> Any:
    """Return an image turned upright, by the orientation in its EXIF data."""
    from PIL import ImageOps

    if picture.getexif().get(_ORIENTATION, 1) == 1:
        return picture
    return ImageOps.exif_transpose(picture)


def _convert_mode(picture: Any, mode: str) -> Any:
    """Return a copy of an image in Pillow's mode `mode`. Raises ValueError if the image does not say which pixel value
    is white, or if it has more than 16 bits per pixel."""
    import numpy as np
    from PIL import Image

    if picture.mode.startswith("I"):  # 16 bits; Pillow would clip values above 255
        values = np.asarray(picture)
        if values.min() < 0 or values.max() >= 1 << 16:
            raise ValueError(f"its pixels go from {values.min()} to {values.max()}, and at most 16 bits are read")
        picture = Image.fromarray((values >> 8).astype(np.uint8))
    elif picture.mode == "F":
        raise ValueError("its pixels are fractions, whose value for white is not known")
    elif picture.mode == "P" and "transparency" in picture.info:
        picture = picture.convert("RGBA")
    return picture.copy() if picture.mode == mode else picture.convert(mode)


def _decode_error(column: Column, row: int, error: Exception) -> BadValueError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    if type(error).__name__ == "UnidentifiedImageError":
        reason = "it is not a picture in a format that Pillow reads"
    elif isinstance(error, OSError) and error.strerror:
        reason = error.strerror.lower()
    message = f"`{column.name}` cannot be decoded: {reason}"
    hint = "repair or remove the file, or leave such rows out: `on_bad_row: skip` under `data`"
    return BadValueError("unreadable", column.name, message, row=row, help=hint)
