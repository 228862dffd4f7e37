"""Field of an angle: a column of degrees becomes its sine and cosine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field as Key

from declarative_train.components.component import ShapeError
from declarative_train.components.data import Column, Field
from declarative_train.core.tensor_spec import TensorSpec

if TYPE_CHECKING:
    import numpy as np


class AngleField(Field):
    """Sine and cosine of a column of degrees, float32 of shape (2,)."""

    type: Literal["angle"] = "angle"
    column: Annotated[str, Key(min_length=1)]
    """Column of degrees."""

    @property
    def wanted(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def cut(self) -> None:
        return None

    def check(self, columns: Sequence[Column]) -> ShapeError | None:
        if columns[0].dtype == "object" or columns[0].shape:
            return ShapeError(
                f"`{columns[0].name}` holds no numbers, and an angle is a number of degrees", field="column"
            )
        return None

    def tally(self, columns: Sequence[Column]) -> None:
        return None

    def row_spec(self, columns: Sequence[Column], statistics: Mapping[str, object]) -> TensorSpec:
        return TensorSpec((2,)).between([(-1.0, 1.0)])

    def convert(
        self, values: Sequence[np.ndarray], columns: Sequence[Column], statistics: Mapping[str, object]
    ) -> np.ndarray:
        import numpy as np

        radians = np.deg2rad(values[0].astype(np.float64))
        return np.stack([np.sin(radians), np.cos(radians)], axis=-1).astype(np.float32)
