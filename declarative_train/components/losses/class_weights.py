"""Weights of classes: as a recipe gives them, and `balanced` from the counts of the training rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field

from declarative_train.components.component import ShapeError
from declarative_train.components.losses.shape_checks import class_axis
from declarative_train.core.amounts import counted
from declarative_train.core.tensor_spec import TensorSpec

if TYPE_CHECKING:
    import numpy as np


def _not_the_batch(dim: int) -> int:
    if dim == 0:
        raise ValueError("`class_dim: 0` is the batch; use -1 for the last dimension, or 1 for images")
    return dim


ClassDim = Annotated[int, AfterValidator(_not_the_batch)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
ClassWeights = tuple[Weight, ...] | Literal["balanced"] | None


def needs_class_weights(
    type: str, class_weights: ClassWeights, num_classes: int, target: TensorSpec | None
) -> ShapeError | None:
    """One number for each class."""
    if class_weights is None:
        return None
    if class_weights == "balanced":
        if target is None or not target.is_floating:
            return None
        message = "`class_weights: balanced` counts the classes of the training rows, but the target has parts of each"
        return ShapeError(message, field="class_weights", help="give a number for each class")
    if len(class_weights) == num_classes:
        return None
    message = f"`class_weights` has {counted(len(class_weights), 'number')} for {counted(num_classes, 'class')}"
    return ShapeError(message, field="class_weights")


def tally_classes(targets: np.ndarray, input: TensorSpec, class_dim: int, ignore_index: int | None) -> np.ndarray:
    """Items of each class (C,) int64, those to ignore left out."""
    import numpy as np

    axis = class_axis(input.shape, class_dim)
    assert axis is not None, "the check comes before the count"
    flat = targets.reshape(-1)
    if ignore_index is not None:
        flat = flat[flat != ignore_index]
    num_classes = input.shape[axis]
    if flat.size and (int(flat.min()) < 0 or int(flat.max()) >= num_classes):
        wrong = int(flat.min()) if int(flat.min()) < 0 else int(flat.max())
        raise ValueError(f"a target of the training rows is {wrong}, which is none of the {num_classes} classes")
    return np.bincount(flat.astype(np.int64), minlength=num_classes).astype(np.int64)


def balanced_weights(tally: np.ndarray) -> tuple[float, ...]:
    """n / (k x count) for the k classes that occur, whose mean over the items is then 1; 1 for one that does not
    occur, which no training row asks for."""
    num_items, num_present = int(tally.sum()), int((tally > 0).sum())
    if num_items == 0:
        raise ValueError("`class_weights: balanced` cannot be computed: no training row has a class that counts")
    return tuple(num_items / (num_present * int(count)) if count else 1.0 for count in tally)
