"""Field of segmentation masks: a column of mask files becomes int64 (H, W), the class number of each pixel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field as Key
from pydantic import model_validator

from declarative_train.components.component import ShapeError
from declarative_train.components.data import BadValueError, Column
from declarative_train.components.transform import Size
from declarative_train.core.tensor_spec import DType, TensorSpec
from declarative_train.packs.images.image import PictureField, turn_upright
from declarative_train.packs.images.transforms.sizes import Method

if TYPE_CHECKING:
    import numpy as np

Pixel = Annotated[int, Key(ge=0, le=255)]
_LEVELS = 256  # class numbers: transforms need 8 bits per pixel


class MaskField(PictureField):
    """Segmentation masks, int64 of shape (H, W): the class number of each pixel. Transforms move a mask together with
    the pictures of its sample, and never mix its classes: resizing uses `nearest`, and transforms of colours or of
    decoded pixel values do not change masks.

    The value of a pixel (grey, or the index in a palette) is its class number, or is looked up in `values`.
    """

    meaning: ClassVar[tuple[str, ...]] = ("num_classes", "values", "ignore")
    dtype: ClassVar[DType] = "int64"
    is_mask: ClassVar[bool] = True

    type: Literal["mask"] = "mask"
    num_classes: Annotated[int, Key(ge=1, le=_LEVELS)] | None = None
    """Number of classes: pixels go from 0 to this - 1. Needed unless `values` are given."""
    values: Annotated[tuple[Pixel, ...], Key(min_length=1)] | None = None
    """Value of a pixel of class 0, 1, ... in the file: `[0, 255]` for a mask of black and white."""
    ignore: Pixel | None = None
    """Value of pixels without a class (often 255, along edges). They get the number after the last class, which the
    loss can ignore: with 21 classes `ignore_index: 21`. Pixels that transforms bring in from outside the picture have
    no class either; without this key they are class 0."""

    @model_validator(mode="after")
    def _agrees(self) -> MaskField:
        if (self.num_classes is None) == (self.values is None):
            raise ValueError("set the classes by one of two keys: `num_classes`, or a list of `values`")
        if self.values is not None and len(set(self.values)) < len(self.values):
            raise ValueError("`values` names a pixel twice")
        if self.ignore is not None and self.values is not None and self.ignore in self.values:
            raise ValueError(f"`ignore` is {self.ignore}, which is one of `values`")
        if self.ignore is not None and self.num_classes is not None and self.ignore < self.num_classes:
            raise ValueError(f"`ignore` is {self.ignore}, which is one of the {self.num_classes} classes")
        return self

    @property
    def channels(self) -> int:
        return 1

    @property
    def filter(self) -> Method:
        return "nearest"

    @property
    def _num_classes(self) -> int:
        return len(self.values) if self.values is not None else self.num_classes or 0

    @property
    def _outside(self) -> int:
        """Class number of the pixels that a transform adds outside the image: with the key `ignore`, the one that
        ignored pixels have; otherwise 0."""
        return 0 if self.ignore is None else self._num_classes

    def check(self, columns: Sequence[Column]) -> ShapeError | None:
        column = columns[0]
        if column.dtype in ("bytes", "object") and not column.shape:
            return None
        if column.dtype in ("uint8", "int16", "int32", "int64", "bool") and len(column.shape) == 2:
            return None
        found = f"{column.dtype} of shape {column.shape}" if column.shape else column.dtype
        message = f"`{column.name}` holds {found}, and masks are files, paths, or arrays (H, W) of whole numbers"
        return ShapeError(message, field="column")

    def spec_of_size(self, size: Size, interval: tuple[float, float]) -> TensorSpec:
        last = self._num_classes - (self.ignore is None)
        return TensorSpec((size[0] or 0, size[1] or 0), "int64").between([(0, last)])

    def decode(self, picture: Any, column: Column, row: int) -> Any:
        from PIL import Image

        if picture.format in ("JPEG", "MPO"):
            raise ValueError("a JPEG does not keep the pixels of a mask; write it as PNG")
        return Image.fromarray(self._classes(_pixels(turn_upright(picture)), column, row))

    def _open(self, value: Any, column: Column, row: int) -> Any:
        if not column.shape:
            return super()._open(value, column, row)
        from PIL import Image

        if value.min() < 0 or value.max() >= _LEVELS:
            raise ValueError(f"its pixels go from {value.min()} to {value.max()}, and those of a mask from 0 to 255")
        return Image.fromarray(value.astype("uint8"))

    def _classes(self, pixels: np.ndarray, column: Column, row: int) -> np.ndarray:
        """Return the class of each pixel as uint8 (H, W), shifted: (class - `_outside`) modulo 256. So 0 means the
        class `_outside`; transforms fill areas outside the image with 0. `pixels`: values in the file. Raises
        BadValueError for a value without a class."""
        import numpy as np

        table = np.full(_LEVELS, -1, np.int64)
        if self.values is not None:
            table[list(self.values)] = np.arange(len(self.values))
        else:
            table[: self._num_classes] = np.arange(self._num_classes)
        if self.ignore is not None:
            table[self.ignore] = self._num_classes
        found = table[np.minimum(pixels, _LEVELS - 1)]
        wrong = (found < 0) | (pixels >= _LEVELS)
        if wrong.any():
            what = "not in `values`" if self.values is not None else f"none of {self._num_classes} classes"
            message = f"`{column.name}` has a pixel of {pixels[wrong][0]}, which is {what}"
            key = "values" if self.values is not None else "num_classes"
            hint = "add it to the classes, or exclude it from the loss: `ignore`"
            raise BadValueError("outside", column.name, message, row=row, help=hint, key=key)
        moved: np.ndarray = ((found - self._outside) % _LEVELS).astype(np.uint8)
        return moved

    def numbers(self, picture: Any) -> np.ndarray:
        """Convert a mask, a Pillow image after the transforms, to class numbers, int64 (H, W)."""
        import numpy as np

        found: np.ndarray = (np.asarray(picture).astype(np.int64) + self._outside) % _LEVELS
        return found


def _pixels(picture: Any) -> np.ndarray:
    """Return the pixel values of a mask as in the file, (H, W) int64. Raises ValueError for an image that is coloured,
    or has fractions or negative numbers."""
    import numpy as np

    if picture.mode == "F":
        raise ValueError("its pixels are fractions, and those of a mask whole numbers")
    values = np.asarray(picture)
    if values.ndim == 3:
        colours = values[:, :, : 1 if picture.mode == "LA" else 3]
        if (colours != colours[:, :, :1]).any():
            raise ValueError("it is coloured, and a mask is grey or has a palette")
        values = colours[:, :, 0]
    if values.size and int(values.min()) < 0:
        raise ValueError(f"its pixels go down to {values.min()}")
    return values.astype(np.int64)
