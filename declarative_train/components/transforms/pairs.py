"""Transforms of a training batch: a sample is mixed with its partner, the neighbour in the order of the epoch.

Positions 2k and 2k + 1 of an epoch's order are partners. Both are in one microbatch of one rank, which is even, so that
every layout mixes the same samples. Shares and boxes are drawn by (seed, epoch, sample, place in the list).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from declarative_train.components.counter_rng import Drawn, key_of, uniform
from declarative_train.components.data import Transform

if TYPE_CHECKING:
    import numpy as np
    import torch

Share = Annotated[float, Field(gt=0, le=1)]
Alpha = Annotated[float, Field(gt=0, le=1000)]


class PairTransform(Transform, ABC):
    """`mixed` is given all rows (R, ...) of a microbatch; `apply` leaves a single sample as it is."""

    is_random: ClassVar[bool] = True
    on_numbers: ClassVar[bool] = True
    of_pairs: ClassVar[bool] = True
    of_pictures: ClassVar[bool] = False

    labels: tuple[str, ...]
    if TYPE_CHECKING:  # declared by each, where they stand in the documentation
        alpha: Alpha
        p: Share

    def apply(self, values: list[Any], drawn: Drawn) -> list[Any]:
        return values

    @abstractmethod
    def mixed(
        self,
        tensors: Mapping[str, torch.Tensor],
        partners: Mapping[str, torch.Tensor],
        fields: tuple[str, ...],
        numbers: np.ndarray,
        acts: np.ndarray,
        key: int,
    ) -> dict[str, torch.Tensor]:
        """The fields and labels (R, ...), mixed with those of the partners where `acts` (R,). `numbers` (R,): of the
        samples."""

    def _shares(self, numbers: np.ndarray, acts: np.ndarray, key: int) -> np.ndarray:
        import numpy as np

        return np.where(acts, beta(numbers, key, self.alpha), 1.0)


class MixUp(PairTransform):
    """Weighted means of two samples: Zhang et al., https://arxiv.org/abs/1710.09412.

    share * own + (1 - share) * partner's, of the fields and the labels alike, in training alone. Partners are
    neighbours of the epoch's order (positions 2k and 2k + 1), so that all layouts mix the same samples; the last one of
    an odd number stays as it is.
    """

    type: Literal["mixup"] = "mixup"
    labels: tuple[str, ...]
    """The fields that are predicted, mixed by the same share: numbers, or classes with `one_hot: true`; `[]`: none."""
    alpha: Alpha = 0.2
    """The share is drawn from Beta(alpha, alpha): 1 is any share alike, less are shares near 0 and 1."""
    p: Share = 1.0
    """How many of the samples; of several entries that mix, at most one acts on a sample, and their `p` add up to 1."""

    def mixed(
        self,
        tensors: Mapping[str, torch.Tensor],
        partners: Mapping[str, torch.Tensor],
        fields: tuple[str, ...],
        numbers: np.ndarray,
        acts: np.ndarray,
        key: int,
    ) -> dict[str, torch.Tensor]:
        shares = self._shares(numbers, acts, key)
        return {name: weighted(tensors[name], partners[name], shares) for name in (*fields, *self.labels)}


class CutMix(PairTransform):
    """A rectangle of the partner's picture is pasted: Yun et al., https://arxiv.org/abs/1905.04899.

    Labels are mixed by area, in training alone. Partners are neighbours of the epoch's order (positions 2k and 2k + 1),
    so that all layouts mix the same samples; the last one of an odd number stays as it is.
    """

    of_pictures: ClassVar[bool] = True

    type: Literal["cutmix"] = "cutmix"
    labels: tuple[str, ...]
    """The fields that are predicted, mixed by the shares of the area: numbers, or classes with `one_hot: true`; `[]`:
    none."""
    alpha: Alpha = 1.0
    """The share of the area that stays is drawn from Beta(alpha, alpha), before the rectangle is cut off at edges."""
    p: Share = 1.0
    """How many of the samples; of several entries that mix, at most one acts on a sample, and their `p` add up to 1."""

    def mixed(
        self,
        tensors: Mapping[str, torch.Tensor],
        partners: Mapping[str, torch.Tensor],
        fields: tuple[str, ...],
        numbers: np.ndarray,
        acts: np.ndarray,
        key: int,
    ) -> dict[str, torch.Tensor]:
        height, width = tensors[fields[0]].shape[-2:]
        shares = self._shares(numbers, acts, key)
        boxes = self.boxes(shares, numbers, key, height, width)
        found = {name: pasted(tensors[name], partners[name], boxes) for name in fields}
        top, left, bottom, right = boxes
        areas = 1.0 - (right - left) * (bottom - top) / (width * height)
        return found | {name: weighted(tensors[name], partners[name], areas) for name in self.labels}

    def boxes(
        self, shares: np.ndarray, numbers: np.ndarray, key: int, height: int, width: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(R,) each: top, left, bottom, right; around a pixel drawn anywhere, without what lies outside."""
        import numpy as np

        down, across = (
            (uniform(numbers, key_of(key, side)) * size).astype(np.int64)
            for side, size in (("height", height), ("width", width))
        )
        half = 0.5 * np.sqrt(1.0 - shares)
        tall, wide = (half * height).astype(np.int64), (half * width).astype(np.int64)
        return (
            np.maximum(down - tall, 0),
            np.maximum(across - wide, 0),
            np.minimum(down + tall, height),
            np.minimum(across + wide, width),
        )


def weighted(own: torch.Tensor, other: torch.Tensor, shares: np.ndarray) -> torch.Tensor:
    """(R, ...): shares * own + (1 - shares) * other."""
    import torch

    exact = own.dtype if own.dtype in (torch.float32, torch.float64) else torch.float32
    first, second = (_of_rows(each, own).to(exact) for each in (shares, 1.0 - shares))
    return own.to(exact).mul(first).add_(other.to(exact).mul(second)).to(own.dtype)


def pasted(
    own: torch.Tensor, other: torch.Tensor, boxes: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
) -> torch.Tensor:
    """(R, ..., H, W)."""
    import torch

    height, width = own.shape[-2:]
    down = torch.arange(height, device=own.device)[:, None]
    across = torch.arange(width, device=own.device)[None, :]
    top, left, bottom, right = (_of_rows(each, own) for each in boxes)
    inside = (down >= top) & (down < bottom) & (across >= left) & (across < right)
    return torch.where(inside, other, own)


def _of_rows(values: np.ndarray, like: torch.Tensor) -> torch.Tensor:
    """(R, 1, ..., 1) where `like` is."""
    import torch

    made = torch.from_numpy(values)
    if like.device.type == "cuda":
        made = made.pin_memory()
    elif like.device.type == "mps" and made.dtype == torch.float64:
        made = made.float()
    return made.to(like.device, non_blocking=True).view(-1, *[1] * (like.dim() - 1))


def beta(numbers: np.ndarray, key: int, alpha: float) -> np.ndarray:
    """float64 (N,) from Beta(alpha, alpha), one per number: Joehnk (1964) up to 1, algorithm BB of Cheng (1978) above,
    both of which try until they take a draw."""
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
    """By logarithms: powers of 1 / alpha get too small for a float."""
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
