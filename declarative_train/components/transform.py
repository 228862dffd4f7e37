"""Interface of transforms, which change the images of a sample (augmentation)."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from declarative_train.components.component import Component, ShapeError

if TYPE_CHECKING:
    from declarative_train.components.counter_rng import Drawn

Size = tuple[int | None, int | None]
"""Height and width of a picture; None: pictures differ."""


class Motion(NamedTuple):
    """Affine map of the points of an image: (x, y) goes to (a x + b y + c, d x + e y + f). Both points are in pixels
    from the upper left corner. `size`: (height, width) of the new image."""

    matrix: tuple[float, float, float, float, float, float]
    size: tuple[int, int]


class Transform(Component, ABC):
    """Transform: changes the images of a sample. Transforms are applied in the order of the list.

    on_numbers   changes float32 arrays (C, H, W), not Pillow images with 8 bits per channel
    is_random    applied in training only; its random numbers depend only on (seed, epoch, sample, position in the list)
    of_pairs     mixes each sample of a training batch with another one, after all other transforms
    moves        moves points of the image, so masks and boxes are changed too; None: unknown"""

    is_random: ClassVar[bool] = False
    on_numbers: ClassVar[bool] = False
    changes_colours: ClassVar[bool] = False
    of_pairs: ClassVar[bool] = False
    moves: ClassVar[bool | None] = False

    fields: tuple[str, ...] | None = None
    """Image fields that it changes, masks included, all by the same random numbers. Left out: all. Boxes are changed
    with their image."""
    only: Literal["training", "evaluation"] | None = None
    """Samples that it changes: those of training steps, or those of evaluations and predictions. Left out: both, except
    that a random one changes only those of training steps."""

    def acts(self, in_training: bool) -> bool:
        if self.is_random and not in_training:
            return False
        return self.only is None or (self.only == "training") == in_training

    def changes(self, field: str) -> bool:
        return self.fields is None or field in self.fields

    def check(self, size: Size, channels: int) -> ShapeError | None:
        """Return why images of size `size` with `channels` channels cannot be transformed, or None if they can."""
        return None

    def size_after(self, size: Size) -> Size:
        """Return (height, width) of the result for images of size `size`, with None in place of a number that the
        recipe does not determine."""
        return size

    def interval_after(self, interval: tuple[float, float], channels: int) -> tuple[float, float]:
        """Return the interval that contains all numbers of a transformed image. `interval`: the interval of the image
        before the transform. `channels`: its number of channels."""
        return interval

    @abstractmethod
    def apply(self, values: "list[Any]", drawn: "Drawn") -> "list[Any]":
        """Return the changed images (or arrays) of one sample, one for each field. `drawn`: source of random numbers.
        Raises ValueError, with a message for the user, if an image cannot be changed."""

    def apply_to_masks(self, masks: "list[Any]", drawn: "Drawn") -> "list[Any]":
        """Return the masks of a sample, moved as `apply` moves the images. Their class numbers are not interpolated.
        `drawn`: source of the same random numbers as in `apply`. Call this method only if `moves` is True."""
        nearest = {"method": "nearest"} if "method" in type(self).model_fields else {}
        return self.model_copy(update=nearest).apply(masks, drawn)

    def motions(self, size: tuple[int, int], drawn: "Drawn") -> "Sequence[Motion]":
        """Return the affine maps by which `apply` moves the points of an image, in the order in which they are applied.
        `size`: size of the image. `drawn`: source of the same random numbers as in `apply`. Call this method only if
        the transform `moves`."""
        raise NotImplementedError(self.type)
