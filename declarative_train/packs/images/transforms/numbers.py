"""Transforms of decoded images: float32 arrays (C, H, W)."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from declarative_train.components.component import ShapeError
from declarative_train.components.counter_rng import Drawn
from declarative_train.components.transform import Size, Transform

_IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
Part = Annotated[float, Field(gt=0, le=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Deviation = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Normalize(Transform):
    """Normalised values, (value - mean) / std for each channel. Before this transform, values are from 0 to 1."""

    on_numbers: ClassVar[bool] = True

    type: Literal["normalize"] = "normalize"
    mean: Literal["imagenet"] | Annotated[tuple[Finite, ...], Field(min_length=1)]
    """One number for each channel, or one for all; `imagenet`: those of that data set, which most published weights for
    images expect."""
    std: Literal["imagenet"] | Annotated[tuple[Deviation, ...], Field(min_length=1)]
    """As `mean`."""

    @property
    def _numbers(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        mean = _IMAGENET["mean"] if self.mean == "imagenet" else self.mean
        std = _IMAGENET["std"] if self.std == "imagenet" else self.std
        return mean, std

    def check(self, size: Size, channels: int) -> ShapeError | None:
        for key, values in zip(("mean", "std"), self._numbers, strict=True):
            if len(values) not in (1, channels):
                message = f"`{key}` has {len(values)} numbers, but the images have {channels} channel"
                return ShapeError(
                    message + ("s" if channels > 1 else ""),
                    field=key,
                    help=("set one for each channel, or one for all"),
                )
        return None

    def interval_after(self, interval: tuple[float, float], channels: int) -> tuple[float, float]:
        mean, std = (values * (channels // len(values)) for values in self._numbers)
        low, high = interval
        ends = [(end - m) / s for m, s in zip(mean, std, strict=True) for end in (low, high)]
        return min(ends), max(ends)

    def apply(self, values: list[Any], drawn: Drawn) -> list[Any]:
        import numpy as np

        mean, std = (np.asarray(each, np.float32).reshape(-1, 1, 1) for each in self._numbers)
        return [(each - mean) / std for each in values]


class RandomErasing(Transform):
    """Random rectangle filled with one value: Zhong et al., https://arxiv.org/abs/1708.04896."""

    is_random: ClassVar[bool] = True
    on_numbers: ClassVar[bool] = True

    type: Literal["random_erasing"] = "random_erasing"
    p: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Probability."""
    scale: tuple[Part, Part] = (0.02, 0.33)
    """Minimum and maximum share of the area."""
    ratio: tuple[Annotated[float, Field(gt=0, le=100)], Annotated[float, Field(gt=0, le=100)]] = (0.3, 3.3)
    """Minimum and maximum height / width; its logarithm is uniform."""
    value: Finite = 0.0
    """Value in the rectangle; after `normalize`, 0 is the mean."""

    @model_validator(mode="after")
    def _check_order(self) -> RandomErasing:
        for key, (low, high) in (("scale", self.scale), ("ratio", self.ratio)):
            if low > high:
                raise ValueError(f"`{key}` goes from {low:g} down to {high:g}; the minimum comes first")
        return self

    def interval_after(self, interval: tuple[float, float], channels: int) -> tuple[float, float]:
        return min(interval[0], self.value), max(interval[1], self.value)

    def apply(self, values: list[Any], drawn: Drawn) -> list[Any]:
        if not drawn.happens(self.p):
            return values
        if len({each.shape[1:] for each in values}) > 1:
            raise ValueError("the images of one sample share random draws, but differ in size")
        height, width = values[0].shape[1:]
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for _ in range(10):
            area = height * width * drawn.uniform(*self.scale)
            ratio = math.exp(drawn.uniform(low, high))
            h, w = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < h < height and 0 < w < width:
                top, left = drawn.below(height - h + 1), drawn.below(width - w + 1)
                erased = [each.copy() for each in values]
                for each in erased:
                    each[:, top : top + h, left : left + w] = self.value
                return erased
        return values
