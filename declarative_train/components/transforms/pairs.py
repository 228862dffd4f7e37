"""Base of transforms that mix each sample of a training batch with another one, its partner (mixup).

The samples at positions 2k and 2k + 1 in the order of an epoch are partners. Both are in one microbatch of one rank,
because microbatches have even sizes. So every layout mixes the same samples. All random numbers depend only on (seed,
epoch, sample, position in the list of transforms).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from declarative_train.components.counter_rng import Drawn, key_of, uniform
from declarative_train.components.transform import Transform

if TYPE_CHECKING:
    import numpy as np
    import torch

Share = Annotated[float, Field(gt=0, le=1)]
Alpha = Annotated[float, Field(gt=0, le=1000)]


class PairTransform(Transform, ABC):
    """Base class of transforms that mix two samples. `mix` mixes all rows (R, ...) of a microbatch with their partners.
    `apply` gets a single sample without a partner, so it returns the sample unchanged."""

    is_random: ClassVar[bool] = True
    on_numbers: ClassVar[bool] = True
    of_pairs: ClassVar[bool] = True
    of_pictures: ClassVar[bool] = False

    labels: tuple[str, ...]
    if TYPE_CHECKING:  # declared in each class, so that they are documented there
        alpha: Alpha
        p: Share

    def apply(self, values: list[Any], drawn: Drawn) -> list[Any]:
        return values

    @abstractmethod
    def mix(
        self,
        tensors: Mapping[str, torch.Tensor],
        partners: Mapping[str, torch.Tensor],
        fields: tuple[str, ...],
        numbers: np.ndarray,
        acts: np.ndarray,
        key: int,
    ) -> dict[str, torch.Tensor]:
        """Return the image fields and labels (R, ...) of a microbatch by name, after mixing. Row i of `tensors` is
        mixed with row i of `partners` if `acts[i]` is true, else it is unchanged.

        `fields`: names of the image fields. `numbers` (R,): index of the sample in each row. The random numbers depend
        only on `numbers` and `key`."""

    def _shares(self, numbers: np.ndarray, acts: np.ndarray, key: int) -> np.ndarray:
        import numpy as np

        return np.where(acts, beta(numbers, key, self.alpha), 1.0)


def beta(numbers: np.ndarray, key: int, alpha: float) -> np.ndarray:
    """Return a random number from Beta(alpha, alpha) for each of the N integers `numbers`, float64 (N,). It is
    determined by the integer and `key`. Method: rejection sampling by Joehnk (1964) for alpha up to 1, else algorithm
    BB of Cheng (1978)."""
    import numpy as np

    found = np.empty(len(numbers))
    left, turn = np.arange(len(numbers)), 0
    while left.size:
        first, second = (1.0 - uniform(numbers[left], key_of(key, turn, each)) for each in ("first", "second"))
        values, is_taken = _joehnk(first, second, alpha) if alpha <= 1 else _cheng(first, second, alpha)
        found[left[is_taken]] = values[is_taken]
        left, turn = left[~is_taken], turn + 1
    return found


def _joehnk(first: np.ndarray, second: np.ndarray, alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """Return random numbers proposed by Joehnk's rejection sampling of a beta distribution, and whether each is
    accepted. `first`, `second`: uniform random numbers. Logarithms are used because powers of 1 / alpha underflow."""
    import numpy as np

    one, other = np.log(first) / alpha, np.log(second) / alpha
    return np.exp(one - np.logaddexp(one, other)), np.exp(one) + np.exp(other) <= 1


def _cheng(first: np.ndarray, second: np.ndarray, alpha: float) -> tuple[np.ndarray, np.ndarray]:
    import numpy as np

    scale = alpha**-0.5
    with np.errstate(divide="ignore", over="ignore"):
        moved = np.where(first < 1, scale * np.log(first / (1.0 - first)), 700.0)
        weight = alpha * np.exp(moved)
        bound = (alpha + 1 / scale) * moved - np.log(4.0)
        is_taken = bound + 2 * alpha * np.log(2 * alpha / (alpha + weight)) >= np.log(first * first * second)
    return weight / (alpha + weight), is_taken
