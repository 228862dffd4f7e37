"""Layers that drop values or add noise at random in training. In evaluation they return their input
unchanged.
"""

from __future__ import annotations

from abc import ABC
from typing import ClassVar, Literal

from pydantic import Field

from declarative_train.components.component import ShapeError
from declarative_train.components.layers.shape_checks import FieldsLayer, Inputs, needs_float, needs_shape
from declarative_train.components.layers.sizes import SHAPES
from declarative_train.core.cuts import CutKind, LayerCut


class Dropping(FieldsLayer, ABC):
    """Base class of dropout layers. `num_dims`: number of spatial dimensions that the input must have; 0 means any."""

    num_dims: ClassVar[int] = 0

    p: float

    @property
    def is_random(self) -> bool:
        return self.p > 0

    def check(self, inputs: Inputs) -> ShapeError | None:
        n = self.num_dims
        return (needs_shape(self, inputs, SHAPES[n], n + 1) if n else None) or needs_float(self, inputs)


class Dropout(Dropping):
    """Sets elements to zero with probability `p`, and scales the others by 1 / (1 - p)."""

    module: ClassVar[str] = "nn.Dropout"
    type: Literal["dropout"] = "dropout"
    p: float = Field(default=0.5, ge=0, lt=1)
    """Probability that an element is dropped."""

    def cut(self, kind: CutKind, inputs: Inputs, size: int) -> LayerCut | str | None:
        return LayerCut(kind, {}) if kind == "positions" else None


class AlphaDropout(Dropping):
    """Dropout that keeps the mean and variance of its input. Use it in networks with `selu`."""

    module: ClassVar[str] = "nn.AlphaDropout"
    type: Literal["alpha_dropout"] = "alpha_dropout"
    p: float = Field(default=0.5, ge=0, lt=1)
    """Probability that an element is dropped."""


class Dropout1d(Dropping):
    """Sets whole channels of (B, C, T) to zero with probability `p`."""

    module: ClassVar[str] = "nn.Dropout1d"
    num_dims: ClassVar[int] = 1
    type: Literal["dropout1d"] = "dropout1d"
    p: float = Field(default=0.5, ge=0, lt=1)
    """Probability that a channel is dropped."""


class Dropout2d(Dropping):
    """Sets whole channels of (B, C, H, W) to zero with probability `p`."""

    module: ClassVar[str] = "nn.Dropout2d"
    num_dims: ClassVar[int] = 2
    type: Literal["dropout2d"] = "dropout2d"
    p: float = Field(default=0.5, ge=0, lt=1)
    """Probability that a channel is dropped."""


class Dropout3d(Dropping):
    """Sets whole channels of (B, C, D, H, W) to zero with probability `p`."""

    module: ClassVar[str] = "nn.Dropout3d"
    num_dims: ClassVar[int] = 3
    type: Literal["dropout3d"] = "dropout3d"
    p: float = Field(default=0.5, ge=0, lt=1)
    """Probability that a channel is dropped."""


class DropPath(Dropping):
    """Stochastic depth: sets all elements of a sample to zero with probability `p`. Put it at the end of a residual
    branch.

    Huang et al., Deep networks with stochastic depth, 2016.
    """

    module: ClassVar[str] = "shapes.DropPathModule"
    type: Literal["drop_path"] = "drop_path"
    p: float = Field(default=0.1, ge=0, lt=1)
    """Probability that a sample skips the branch."""


class EmbeddingNoise(FieldsLayer):
    """Adds uniform noise, of at most alpha / sqrt(T * D), to the vectors of a sequence (B, T, D).

    Jain et al., NEFTune: noisy embeddings improve instruction finetuning, 2023.
    """

    module: ClassVar[str] = "shapes.EmbeddingNoiseModule"
    type: Literal["embedding_noise"] = "embedding_noise"
    alpha: float = Field(default=5.0, ge=0, allow_inf_nan=False)
    """Size of the noise; the paper uses 5 to 15."""

    @property
    def is_random(self) -> bool:
        return self.alpha > 0

    def check(self, inputs: Inputs) -> ShapeError | None:
        return needs_shape(self, inputs, "(B, T, D)", 2) or needs_float(self, inputs)
