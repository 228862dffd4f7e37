"""Base classes for the classes of a plugin (docs/plugins.md). The base class of a class decides its kind, such as a
loss. The arguments of `__init__` are its keys in a recipe.

A layer derives from `torch.nn.Module`, an optimizer from `torch.optim.Optimizer`, a source from
`torch.utils.data.Dataset` or `Source`. The other kinds have their base classes here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from declarative_train.run.sink import Sink

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

__all__ = ["Field", "Loss", "LrSchedule", "Metric", "Sink", "Source", "Transform"]


class Loss:
    """Loss of the objective. `forward` receives tensors (B, ...), and returns one value per sample, (B,), or one per
    element of the target. dtrain divides the sum of these values by their number, over the global batch.

    `mixes_samples = True` declares that the value of a sample depends on the other samples of its batch.
    """

    mixes_samples = False

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the values of the loss. A loss without a target has `def forward(self, input)` instead."""
        raise NotImplementedError


class Metric:
    """Metric of the objective: the mean of the values that `forward` returns, one per sample, (B,), or one per element
    of the target.

    A class with a method `whole(self, input, target)` needs no `forward`. The metric is then the result of `whole` for
    all rows of a set at once.
    """

    higher_is_better = True

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        raise NotImplementedError


class LrSchedule:
    """Schedule of the learning rate. It multiplies the learning rate of every parameter by a factor. The factor of
    dtrain's warm-up is applied in addition."""

    def factor(self, step: int, num_steps: int) -> float:
        """Return the factor of an optimizer step. `step`: index of the step, from 0. `num_steps`: number of steps.
        Neither counts the steps of the warm-up."""
        raise NotImplementedError


class Source:
    """Source of rows, which are read by their numbers, 0 to `len(self) - 1`. A row must be the same each time, and in
    every process. A `torch.utils.data.Dataset` is a source too.

    `columns`: dict from column to dtype (numpy's, or `text`, `bytes`, `image`, `date`), or to a mapping such as
    `{"dtype": "float32", "shape": (3, 8)}`; `"num_values": n` in it promises integers in 0..n-1.
    """

    columns: Mapping[str, Any]

    def __len__(self) -> int:
        raise NotImplementedError

    def read(self, rows: np.ndarray, columns: list[str]) -> Mapping[str, np.ndarray]:
        """Return a dict from each of `columns` to its values, (N, *shape). `rows`: numbers of the N rows, int64, in any
        order; a row may occur several times."""
        raise NotImplementedError


class Field:
    """Field: one tensor per sample. `decode` receives the values of its columns in one row, None or nan (in columns of
    numbers) if missing, and returns the tensor. `decode_rows(self, *values)` receives arrays (N, ...) of N rows
    instead, and returns (N, *shape).

    shape        shape of the tensor: numbers and names of arguments of `__init__`
    num_values   n: the values are integers in 0..n-1
    takes_text   True: its columns contain text
    """

    shape: tuple[int | str, ...] = ()
    dtype: str = "float32"
    num_values: int | str
    takes_text = False

    def decode(self, *values: Any) -> Any:
        raise NotImplementedError


class Transform:
    """Transform of images. `apply` receives an image of Pillow, and returns the changed one.

    `random`      `numpy.random.Generator` that depends only on (seed, epoch, sample, position in the list); a transform
                  without randomness may have `def apply(self, picture)`
    `on_numbers`  True: `apply` receives and returns an array of float32 (C, H, W)
    `is_random`   True: it may also draw from global generators; this works only in loader processes
    `size`        (height, width) of the result if it changes: numbers, or names of arguments of `__init__`
    `interval`    (least, greatest) number in the result, if known
    """

    on_numbers = False
    is_random = False
    size: tuple[int | str, int | str]
    interval: tuple[float, float]

    def apply(self, picture: Any, random: np.random.Generator) -> Any:
        raise NotImplementedError
