"""What classes of a plugin derive from: the base says what a class is, its signatures say the rest (docs/plugins.md).

A layer derives from `torch.nn.Module`, an optimizer from `torch.optim.Optimizer`, a source from
`torch.utils.data.Dataset`; the rest has its base here.
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
    """A term of the objective. `forward` is given tensors (B, ...) and returns one value for each sample, (B,), or one
    for each element of the target; dtrain adds them up and divides by their number over the global batch.

    `mixes_samples = True` says that the value of a sample depends on the others of its batch.
    """

    mixes_samples = False

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """`def forward(self, input)` for a loss without a target."""
        raise NotImplementedError


class Metric:
    """A number to watch: the mean over samples of what `forward` returns, (B,) or one value for each element of the
    target. With a method `whole(self, input, target)` instead: what that returns for all rows of a set at once.
    """

    higher_is_better = True

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        raise NotImplementedError


class LrSchedule:
    """A factor on the lr of every parameter. dtrain's own warm-up comes on top."""

    def factor(self, step: int, num_steps: int) -> float:
        """For optimizer step `step`, counted from 0 behind the warm-up, of `num_steps`."""
        raise NotImplementedError


class Source:
    """Rows by number, 0 to `len(self) - 1`, several at once; the same ones each time, in any process. A
    `torch.utils.data.Dataset`, which gives one row at a time, is a source too.

    `columns` says what a row holds, by name: a dtype (numpy's, or `text`, `bytes`, `image`, `date`), or
    `{"dtype": "float32", "shape": (3, 8)}`, with `"num_values": n` for whole numbers in 0..n-1.
    """

    columns: Mapping[str, Any]

    def __len__(self) -> int:
        raise NotImplementedError

    def read(self, rows: np.ndarray, columns: list[str]) -> Mapping[str, np.ndarray]:
        """An array (N, *shape) for each of `columns`, of the rows with these numbers, int64 (N,), repeats allowed."""
        raise NotImplementedError


class Field:
    """A tensor of a sample. `decode` is given the values of its columns in one row, None (numbers: nan) where one is
    missing; or `decode_rows(self, *values)` those of several rows, arrays (N, ...), and gives (N, *shape).

    `shape` is that of the result, of numbers and names of arguments of `__init__`; `num_values = n` promises whole
    numbers in 0..n-1. `takes_text = True`: its columns hold text.
    """

    shape: tuple[int | str, ...] = ()
    dtype: str = "float32"
    num_values: int | str
    takes_text = False

    def decode(self, *values: Any) -> Any:
        raise NotImplementedError


class Transform:
    """A change of a picture: one of Pillow, or with `on_numbers = True` its numbers, float32 (C, H, W).

    `random` is a `numpy.random.Generator` that follows from (seed, epoch, sample, place in the list), alike for every
    field of the sample; `def apply(self, picture)` is a change that always is the same. With `is_random = True` that
    one may draw from the generators of torch, numpy and Python, in loader processes alone.

    `size = (height, width)`: of the result, numbers or names of arguments of `__init__`, where it is another;
    `interval = (least, greatest)`: of the numbers of the result, where they are known.
    """

    on_numbers = False
    is_random = False
    size: tuple[int | str, int | str]
    interval: tuple[float, float]

    def apply(self, picture: Any, random: np.random.Generator) -> Any:
        raise NotImplementedError
