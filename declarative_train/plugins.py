"""Base classes for the classes of a plugin. The base decides the kind of a class, its signatures the rest
(docs/plugins.md).

A layer derives from `torch.nn.Module`, an optimizer from `torch.optim.Optimizer`, a source from
`torch.utils.data.Dataset`. The other kinds have their bases here.
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
    """Term of the objective. `forward` receives tensors (B, ...) and returns one value per sample, (B,), or one per
    element of the target. dtrain sums them and divides by their number over the global batch.

    `mixes_samples = True` declares that the value of a sample depends on the others of its batch.
    """

    mixes_samples = False

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the values. A loss without a target is declared as `def forward(self, input)`."""
        raise NotImplementedError


class Metric:
    """Number to observe: the mean over samples of the result of `forward`, (B,) or one value per element of the target.
    With a method `whole(self, input, target)` instead: its result for all rows of a set at once."""

    higher_is_better = True

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        raise NotImplementedError


class LrSchedule:
    """Factor on the lr of every parameter, multiplied by that of dtrain's own warm-up."""

    def factor(self, step: int, num_steps: int) -> float:
        """Return the factor of optimizer step `step` of `num_steps`, counted from 0 after the warm-up."""
        raise NotImplementedError


class Source:
    """Rows by number, 0 to `len(self) - 1`, several at once, the same each time and in every process. A
    `torch.utils.data.Dataset`, which returns one row at a time, is a source too.

    `columns` declares the values of a row by name: a dtype (numpy's, or `text`, `bytes`, `image`, `date`), or
    `{"dtype": "float32", "shape": (3, 8)}`, with `"num_values": n` for integers in 0..n-1.
    """

    columns: Mapping[str, Any]

    def __len__(self) -> int:
        raise NotImplementedError

    def read(self, rows: np.ndarray, columns: list[str]) -> Mapping[str, np.ndarray]:
        """Return an array (N, *shape) for each of `columns`, of the rows with these numbers, int64 (N,), repeats
        allowed."""
        raise NotImplementedError


class Field:
    """Tensor of a sample. `decode` receives the values of its columns in one row, None (numbers: nan) if one is
    missing. `decode_rows(self, *values)` receives those of several rows, arrays (N, ...), and returns (N, *shape).

    `shape` is that of the result, given as numbers and names of arguments of `__init__`. `num_values = n` promises
    integers in 0..n-1. `takes_text = True`: its columns contain text.
    """

    shape: tuple[int | str, ...] = ()
    dtype: str = "float32"
    num_values: int | str
    takes_text = False

    def decode(self, *values: Any) -> Any:
        raise NotImplementedError


class Transform:
    """Change of an image: one of Pillow, or with `on_numbers = True` its numbers, float32 (C, H, W).

    `random` is a `numpy.random.Generator` that follows from (seed, epoch, sample, place in the list), the same for
    every field of the sample. `def apply(self, picture)` declares a change without randomness. With `is_random = True`
    it may draw from the generators of torch, numpy and Python, in loader processes only.

    `size = (height, width)`: of the result, numbers or names of arguments of `__init__`, if it differs. `interval =
    (least, greatest)`: of the numbers of the result, if known.
    """

    on_numbers = False
    is_random = False
    size: tuple[int | str, int | str]
    interval: tuple[float, float]

    def apply(self, picture: Any, random: np.random.Generator) -> Any:
        raise NotImplementedError
