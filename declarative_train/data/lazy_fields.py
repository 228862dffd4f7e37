"""Lazy fields: fields, such as images, whose values are read from files each time a batch needs them.

A pack provides the subclass of `LazyReader` that reads them. The class of the field names it in `lazy`, as
`package.module:name`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from declarative_train.components.component import ShapeError
from declarative_train.components.data import BadValueError, Column, Field
from declarative_train.components.transform import Transform
from declarative_train.components.transforms import TRANSFORMS
from declarative_train.core.packs import load
from declarative_train.core.tensor_spec import TensorSpec

if TYPE_CHECKING:
    from declarative_train.data.spec import DataSpec


class LazyValues(NamedTuple):
    """Content of the columns of a lazy field for N rows, as the table returns it, such as paths of images. `values`:
    one array of N values for each column."""

    field: Field
    columns: tuple[Column, ...]
    values: tuple[np.ndarray, ...]

    @classmethod
    def of(cls, field: Field, columns: Sequence[Column], read: Mapping[str, np.ndarray]) -> LazyValues:
        return cls(field, tuple(columns), tuple(read[column.name] for column in columns))


class LazyFieldError(Exception):
    """Error: a value of the lazy field `name` cannot be read. `row`: index of the value in the arrays that the reader
    was given."""

    def __init__(self, name: str, row: int, cause: BadValueError) -> None:
        super().__init__(str(cause))
        self.name = name
        self.row = row
        self.cause = cause


class TransformError(Exception):
    """Error: a transform cannot be applied to a field. `place`: index of the transform in the list of transforms; None
    if no single transform is wrong, but the images have different sizes after all of them."""

    def __init__(self, place: int | None, shape_error: ShapeError) -> None:
        super().__init__(shape_error.message)
        self.place = place
        self.shape_error = shape_error


class LazyReader(ABC):
    """Base class of readers: a reader decodes and transforms the values of all lazy fields of one kind, such as images.
    Fields of one sample get the same random numbers, so an image and its mask are flipped together. Random numbers
    depend only on the seed, the epoch, the sample and the index of the transform."""

    def __init__(self, transforms: tuple[Transform, ...], seed: int) -> None:
        self.transforms = transforms
        self.seed = seed

    @abstractmethod
    def spec(self, name: str, field: Field, columns: Sequence[Column]) -> TensorSpec:
        """Return shape and dtype of the field `name` after all transforms, which must be the same in training and
        evaluation. Raises TransformError."""

    @abstractmethod
    def glance(self, given: LazyValues, row: int, *, whole: bool) -> int:
        """Check the file of the value with index `row` in `given`, and return its size in bytes. `whole`: decode the
        file completely, not only its header. Raises BadValueError and MissingPackageError."""

    @abstractmethod
    def arrays(
        self,
        given: Mapping[str, LazyValues],
        shapes: Mapping[str, tuple[int, ...]],
        keys: np.ndarray,
        epoch: int | None,
    ) -> dict[str, np.ndarray]:
        """Return a dict from field name to the decoded and transformed values (N, *shape).

        `given`: dict from field name to the content of its columns. `shapes`: dict from field name to the shape of one
        value after all transforms. `keys` (N,): a number for each sample, from which its random numbers are made.
        `epoch`: the training epoch; None outside of training. Raises LazyFieldError and MissingPackageError.
        """


@dataclass(frozen=True, slots=True)
class TransformChain:
    """Transforms of a recipe, in order, with the seed of their random numbers. Each kind of lazy field, such as images,
    has a reader (LazyReader) that applies them."""

    transforms: tuple[Transform, ...] = ()
    seed: int = 0

    @classmethod
    def of(cls, spec: DataSpec) -> TransformChain:
        """Return the transforms of a DataSpec. Raises ComponentError."""
        return cls(tuple(TRANSFORMS.read(each) for each in spec.transforms), spec.seed)

    def _reader(self, address: str) -> LazyReader:
        made: LazyReader = load(address)(self.transforms, self.seed)
        return made

    def spec(self, name: str, field: Field, columns: Sequence[Column]) -> TensorSpec:
        """Return shape and dtype of a lazy field after all transforms. Raises TransformError."""
        return self._reader(field.lazy).spec(name, field, columns)

    def glance(self, given: LazyValues, row: int, *, whole: bool) -> int:
        """Check the file of the value in row `row` of `given`, and return its size in bytes. `whole`: decode the file
        completely, not only its header. Raises BadValueError and MissingPackageError."""
        return self._reader(given.field.lazy).glance(given, row, whole=whole)

    def arrays(
        self,
        given: Mapping[str, LazyValues],
        shapes: Mapping[str, tuple[int, ...]],
        keys: np.ndarray,
        epoch: int | None,
    ) -> dict[str, np.ndarray]:
        """Return a dict from field name to the decoded and transformed values (N, *shape) of N samples.

        `given`: dict from field name to the content of its columns. `shapes`: dict from field name to the shape of one
        value after all transforms. `keys` (N,): a number for each sample, from which its random numbers are made.
        `epoch`: the training epoch; None outside of training. Raises LazyFieldError and MissingPackageError."""
        found: dict[str, np.ndarray] = {}
        for address in dict.fromkeys(each.field.lazy for each in given.values()):
            mine = {name: each for name, each in given.items() if each.field.lazy == address}
            found |= self._reader(address).arrays(mine, shapes, keys, epoch)
        return {name: found[name] for name in given}


NO_TRANSFORMS = TransformChain()
