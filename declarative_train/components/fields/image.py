"""A column of pictures -> float32 (C, H, W), 0 to 1: files decoded when a sample is asked for."""

from __future__ import annotations

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache
from io import BytesIO
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field as Key

from declarative_train.components.component import Misfit
from declarative_train.components.data import BadValueError, Column, Field, Size, Tally
from declarative_train.components.transforms.sizes import Method, Sides, resized, sides
from declarative_train.core.machine import install
from declarative_train.core.tensor_spec import DType, TensorSpec

if TYPE_CHECKING:
    import numpy as np

CHANNELS = {"L": 1, "RGB": 3, "RGBA": 4}
_ORIENTATION = 0x0112  # EXIF's tag


class MissingPackageError(Exception):
    """Pillow is not installed."""


@cache
def pillow_image() -> Any:
    """Return Pillow's module of images, without its own warnings of pictures of more than 89 million pixels. It refuses
    those of twice as many, which are reported as broken ones. Raises ImportError."""
    from PIL import Image

    warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
    return Image


class PictureField(Field, ABC):
    """What the fields of picture files have in common. They are decoded when a sample is asked for; `numbers` are made
    behind the transforms."""

    reads_late: ClassVar[bool] = True
    dtype: ClassVar[DType] = "float32"
    is_mask: ClassVar[bool] = False

    column: Annotated[str, Key(min_length=1)]
    """Files (`image` of an image_folder, bytes in Parquet), paths of files, or uint8 arrays (H, W) or (H, W, C)."""
    size: Sides | None = None
    """Height and width that every picture is resized to, whatever its shape; a number: a square."""
    folder: Annotated[str, Key(min_length=1)] | None = None
    """Where paths of `column` begin that are not absolute, relative to the recipe's file."""

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
        """For `size`."""

    @abstractmethod
    def sized_spec(self, size: Size, interval: tuple[float, float]) -> TensorSpec:
        """Of pictures of this size, with numbers in `interval`. A side of 0 is one that each picture has for itself."""

    @abstractmethod
    def decoded(self, picture: Any, column: Column, row: int) -> Any:
        """A copy of an opened picture, upright, as transforms take it. Raises BadValueError and ValueError."""

    @abstractmethod
    def numbers(self, picture: Any) -> np.ndarray: ...

    def tally(self, columns: Sequence[Column]) -> Tally | None:
        return None

    def size_of(self, column: Column) -> Size:
        """Of every picture, before the transforms."""
        if self.size is not None:
            return sides(self.size)
        return (column.shape[0], column.shape[1]) if column.shape else (None, None)

    def row_spec(self, columns: Sequence[Column], statistics: Mapping[str, object]) -> TensorSpec:
        """Before the transforms."""
        return self.sized_spec(self.size_of(columns[0]), (0.0, 1.0))

    def convert(
        self, values: Sequence[np.ndarray], columns: Sequence[Column], statistics: Mapping[str, object]
    ) -> np.ndarray:
        """Without transforms."""
        import numpy as np

        found = [self.numbers(self.picture(value, columns[0], row)) for row, value in enumerate(values[0])]
        return np.stack(found)

    def picture(self, value: Any, column: Column, row: int = 0) -> Any:
        """One value as a picture of Pillow, as transforms take it. Raises BadValueError and MissingPackageError."""
        return self.brought_to_size(self.whole(value, column, row))

    def brought_to_size(self, picture: Any) -> Any:
        return picture if self.size is None else resized(picture, *sides(self.size), self.filter)

    def whole(self, value: Any, column: Column, row: int = 0) -> Any:
        """The same, in the size that it has in the file."""
        try:
            with self._opened(value, column, row) as opened:
                opened.load()
                found = self.decoded(opened, column, row)
        except (BadValueError, MissingPackageError):
            raise
        except Exception as error:  # each format has errors of its own for a damaged file
            raise _broken(column, row, error) from error
        return found

    def glance(self, value: Any, column: Column, row: int) -> None:
        """Look at the header alone. Raises BadValueError and MissingPackageError."""
        try:
            self._opened(value, column, row).close()
        except (BadValueError, MissingPackageError):
            raise
        except Exception as error:
            raise _broken(column, row, error) from error

    def _opened(self, value: Any, column: Column, row: int) -> Any:
        try:
            Image = pillow_image()
        except ImportError:
            raise MissingPackageError(f"pictures need the package Pillow; help: {install('images')}") from None
        if value is None:
            raise BadValueError("missing", column.name, f"`{column.name}` misses a picture", row=row)
        if isinstance(value, OSError):
            raise value
        if column.shape:
            return Image.fromarray(value[:, :, 0] if value.ndim == 3 and value.shape[2] == 1 else value)
        if isinstance(value, Image.Image):  # whose owner may give it again
            return value.copy()
        return Image.open(BytesIO(value) if column.dtype == "bytes" else self._path(value, column, row))

    def _path(self, value: str, column: Column, row: int) -> str:
        if os.path.isabs(value):
            return value
        if self.folder is None:
            message = f"`{column.name}` is the path `{value}`, and nothing says in which folder that begins"
            hint = "say it: `folder: data/pictures`"
            raise BadValueError("unreadable", column.name, message, row=row, help=hint)
        return os.path.join(self.folder, value)


class ImageField(PictureField):
    """Pictures, float32 of shape (C, H, W), from 0 (dark) to 1. They are decoded by Pillow when a sample is asked for,
    turned as their EXIF says, and brought to `mode` and `size`; then come the `transforms`.

    Without `size`, transforms must bring all pictures to one size.
    """

    meaning: ClassVar[tuple[str, ...]] = ("mode",)

    type: Literal["image"] = "image"
    mode: Literal["L", "RGB", "RGBA"] = "RGB"
    """The channels: L is grey, RGB drops transparency. 16 bits a channel become 8."""
    method: Method = "bilinear"
    """Pillow's filter for `size`; all but `nearest` weigh every pixel of a picture that shrinks."""

    @property
    def channels(self) -> int:
        return CHANNELS[self.mode]

    @property
    def filter(self) -> Method:
        return self.method

    def check(self, columns: Sequence[Column]) -> Misfit | None:
        column = columns[0]
        if column.dtype in ("bytes", "object") and not column.shape:
            return None
        if column.dtype == "uint8" and len(column.shape) in (2, 3) and _is_picture(column.shape):
            return None
        found = f"{column.dtype} of shape {column.shape}" if column.shape else column.dtype
        found = "dates" if column.dtype.startswith("datetime") else found
        message = f"`{column.name}` holds {found}, and pictures are files, paths, or uint8 arrays (H, W) or (H, W, C)"
        hint = "for numbers that are no picture file use `type: tensor`" if column.shape else None
        return Misfit(message, field="column", help=hint)

    def sized_spec(self, size: Size, interval: tuple[float, float]) -> TensorSpec:
        return TensorSpec((self.channels, size[0] or 0, size[1] or 0)).between([interval])

    def decoded(self, picture: Any, column: Column, row: int) -> Any:
        return _in_mode(upright(picture), self.mode)

    def numbers(self, picture: Any) -> np.ndarray:
        """(C, H, W) float32, 0 to 1."""
        import numpy as np

        values = np.asarray(picture)
        channels_first = values[None] if values.ndim == 2 else values.transpose(2, 0, 1)
        found: np.ndarray = np.multiply(channels_first, np.float32(1 / 255), dtype=np.float32, order="C")
        return found


def _is_picture(shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 or shape[2] in (1, 3, 4)


def upright(picture: Any) -> Any:
    """Turned as its EXIF says."""
    from PIL import ImageOps

    if picture.getexif().get(_ORIENTATION, 1) == 1:
        return picture
    return ImageOps.exif_transpose(picture)


def _in_mode(picture: Any, mode: str) -> Any:
    """A copy in this mode. Raises ValueError for pixels of which nobody knows what is white."""
    import numpy as np
    from PIL import Image

    if picture.mode.startswith("I"):  # 16 bits; Pillow cuts off what is above 255
        values = np.asarray(picture)
        if values.min() < 0 or values.max() >= 1 << 16:
            raise ValueError(f"its pixels go from {values.min()} to {values.max()}, and at most 16 bits are read")
        picture = Image.fromarray((values >> 8).astype(np.uint8))
    elif picture.mode == "F":
        raise ValueError("its pixels are fractions, of which nothing says what is white")
    elif picture.mode == "P" and "transparency" in picture.info:
        picture = picture.convert("RGBA")
    return picture.copy() if picture.mode == mode else picture.convert(mode)


def _broken(column: Column, row: int, error: Exception) -> BadValueError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    if type(error).__name__ == "UnidentifiedImageError":
        reason = "it is not a picture of a kind that Pillow reads"
    elif isinstance(error, OSError) and error.strerror:
        reason = error.strerror.lower()
    message = f"`{column.name}` cannot be decoded: {reason}"
    hint = "mend or remove the file"
    return BadValueError("unreadable", column.name, message, row=row, help=hint)
