"""Transforms that mix the images and labels of two samples: mixup and cutmix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from declarative_train.components.counter_rng import key_of, uniform
from declarative_train.components.transforms.pairs import Alpha, PairTransform, Share

if TYPE_CHECKING:
    import numpy as np
    import torch


class MixUp(PairTransform):
    """Weighted mean of the fields and labels of two samples: Zhang et al., https://arxiv.org/abs/1710.09412.

    In training, the result is share * sample + (1 - share) * partner, with a random share per sample. Partners are
    neighbours in the epoch's order (positions 2k and 2k + 1). So the pairs do not depend on how many ranks divide a
    batch. In an epoch with an odd number of samples, the last one is unchanged.
    """

    type: Literal["mixup"] = "mixup"
    labels: tuple[str, ...]
    """Target fields, mixed with the same share: numbers, or classes with `one_hot: true`; `[]`: none."""
    alpha: Alpha = 0.2
    """The share is drawn from Beta(alpha, alpha): 1 is uniform, smaller values favor shares near 0 and 1."""
    p: Share = 1.0
    """Share of the samples that are changed; of several such transforms at most one acts on a sample, and their `p` are
    added."""

    def mix(
        self,
        tensors: Mapping[str, torch.Tensor],
        partners: Mapping[str, torch.Tensor],
        fields: tuple[str, ...],
        numbers: np.ndarray,
        acts: np.ndarray,
        key: int,
    ) -> dict[str, torch.Tensor]:
        shares = self._shares(numbers, acts, key)
        return {name: add_weighted(tensors[name], partners[name], shares) for name in (*fields, *self.labels)}


class CutMix(PairTransform):
    """Rectangle of the image replaced by that of another sample, its partner: Yun et al.,
    https://arxiv.org/abs/1905.04899.

    Labels are mixed in proportion to the areas, only in training. Partners are neighbours in the epoch's order
    (positions 2k and 2k + 1), so that the pairs do not depend on how many ranks divide a batch. In an epoch with an odd
    number of samples, the last one is unchanged.
    """

    of_pictures: ClassVar[bool] = True

    type: Literal["cutmix"] = "cutmix"
    labels: tuple[str, ...]
    """Target fields, mixed by the share of the area: numbers, or classes with `one_hot: true`; `[]`: none."""
    alpha: Alpha = 1.0
    """The share of the area that is kept is drawn from Beta(alpha, alpha), before the rectangle is cut off at the
    edges."""
    p: Share = 1.0
    """Share of the samples that are changed; of several such transforms at most one acts on a sample, and their `p` are
    added."""

    def mix(
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
        found = {name: paste_boxes(tensors[name], partners[name], boxes) for name in fields}
        top, left, bottom, right = boxes
        areas = 1.0 - (right - left) * (bottom - top) / (width * height)
        return found | {name: add_weighted(tensors[name], partners[name], areas) for name in self.labels}

    def boxes(
        self, shares: np.ndarray, numbers: np.ndarray, key: int, height: int, width: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return one rectangle for each of R images, as (top, left, bottom, right), each (R,). `shares`: for each
        image, the fraction of its area outside the rectangle. Afterwards the rectangle is cut off at the edges of the
        image. `numbers` (indices of the samples) and `key` determine its center, a random pixel."""
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


def add_weighted(own: torch.Tensor, other: torch.Tensor, shares: np.ndarray) -> torch.Tensor:
    """Return shares * own + (1 - shares) * other, with the dtype of `own`. Both tensors are (R, ...). `shares`: one
    number for each of the R rows."""
    import torch

    exact = own.dtype if own.dtype in (torch.float32, torch.float64) else torch.float32
    first, second = (_shape_rows(each, own).to(exact) for each in (shares, 1.0 - shares))
    return own.to(exact).mul(first).add_(other.to(exact).mul(second)).to(own.dtype)


def paste_boxes(
    own: torch.Tensor, other: torch.Tensor, boxes: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
) -> torch.Tensor:
    """Return `own` with the pixels inside `boxes` replaced by the same pixels of `other`; both are (R, ..., H, W)."""
    import torch

    height, width = own.shape[-2:]
    down = torch.arange(height, device=own.device)[:, None]
    across = torch.arange(width, device=own.device)[None, :]
    top, left, bottom, right = (_shape_rows(each, own) for each in boxes)
    inside = (down >= top) & (down < bottom) & (across >= left) & (across < right)
    return torch.where(inside, other, own)


def _shape_rows(values: np.ndarray, like: torch.Tensor) -> torch.Tensor:
    """Return `values`, one for each row, as a tensor (R, 1, ..., 1) with the number of dimensions and the device of
    `like`."""
    import torch

    made = torch.from_numpy(values)
    if like.device.type == "cuda":
        made = made.pin_memory()
    elif like.device.type == "mps" and made.dtype == torch.float64:
        made = made.float()
    return made.to(like.device, non_blocking=True).view(-1, *[1] * (like.dim() - 1))
