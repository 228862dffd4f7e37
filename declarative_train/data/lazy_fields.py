"""Late fields: fields whose values are made when a batch is requested, such as images.

The reader that makes them is a subclass of `LazyReader` in a pack. The field's class names it in `lazy`, as
`package.module:name`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from declarative_train.components.component import ShapeError
from declarative_train.components.data import BadValueError, Column, Field, Transform
from declarative_train.components.transforms import TRANSFORMS
from declarative_train.core.packs import load
from declarative_train.core.tensor_spec import TensorSpec

if TYPE_CHECKING:
    from declarative_train.data.spec import DataSpec


class LazyValues(NamedTuple):
    """Values (N,) of each column of a lazy field, as they are in the table."""

    field: Field
    columns: tuple[Column, ...]
    values: tuple[np.ndarray, ...]

    @classmethod
    def of(cls, field: Field, columns: Sequence[Column], read: Mapping[str, np.ndarray]) -> LazyValues:
        return cls(field, tuple(columns), tuple(read[column.name] for column in columns))


class LazyFieldError(Exception):
    """Error: a value of the field `name` cannot be read; `row` counts within the given values."""

    def __init__(self, name: str, row: int, cause: BadValueError) -> None:
        super().__init__(str(cause))
        self.name = name
        self.row = row
        self.cause = cause


class TransformError(Exception):
    """Error: the transform at `place` does not fit; without a place, the resulting values differ in size."""

    def __init__(self, place: int | None, shape_error: ShapeError) -> None:
        super().__init__(shape_error.message)
        self.place = place
        self.shape_error = shape_error


class LazyReader(ABC):
    """Reader of the lazy fields of one kind, which may share random draws. Draws depend on (seed, epoch, sample, place
    in the list of transforms) only."""

    def __init__(self, transforms: tuple[Transform, ...], seed: int) -> None:
        self.transforms = transforms
        self.seed = seed

    @abstractmethod
    def spec(self, name: str, field: Field, columns: Sequence[Column]) -> TensorSpec:
        """Return the spec of the field after all transforms, the same in training and evaluation. Raises
        TransformError.
        """

    @abstractmethod
    def glance(self, given: LazyValues, row: int) -> None:
        """Check a row without decoding it whole. Raises BadValueError and MissingPackageError."""

    @abstractmethod
    def arrays(
        self,
        given: Mapping[str, LazyValues],
        shapes: Mapping[str, tuple[int, ...]],
        keys: np.ndarray,
        epoch: int | None,
    ) -> dict[str, np.ndarray]:
        """Return (N, *shape) by field. `keys`: the numbers of the samples; `epoch`: None outside of training. Raises
        LazyFieldError and MissingPackageError."""


@dataclass(frozen=True, slots=True)
class TransformChain:
    """Transforms of a recipe, and the seed of their random draws. It asks the reader of each lazy field."""

    transforms: tuple[Transform, ...] = ()
    seed: int = 0

    @classmethod
    def of(cls, spec: DataSpec) -> TransformChain:
        """Read the transforms of a spec. Raises ComponentError."""
        return cls(tuple(TRANSFORMS.read(each) for each in spec.transforms), spec.seed)

    def _reader(self, address: str) -> LazyReader:
        made: LazyReader = load(address)(self.transforms, self.seed)
        return made

    def spec(self, name: str, field: Field, columns: Sequence[Column]) -> TensorSpec:
        """Return the spec of a lazy field. Raises TransformError."""
        return self._reader(field.lazy).spec(name, field, columns)

    def glance(self, given: LazyValues, row: int) -> None:
        """Check a row. Raises BadValueError and MissingPackageError."""
        self._reader(given.field.lazy).glance(given, row)

    def arrays(
        self,
        given: Mapping[str, LazyValues],
        shapes: Mapping[str, tuple[int, ...]],
        keys: np.ndarray,
        epoch: int | None,
    ) -> dict[str, np.ndarray]:
        """Return (N, *shape) by field. Raises LazyFieldError and MissingPackageError."""
        found: dict[str, np.ndarray] = {}
        for address in dict.fromkeys(each.field.lazy for each in given.values()):
            mine = {name: each for name, each in given.items() if each.field.lazy == address}
            found |= self._reader(address).arrays(mine, shapes, keys, epoch)
        return {name: found[name] for name in given}


NO_TRANSFORMS = TransformChain()
