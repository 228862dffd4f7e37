"""Synthetic data as a source. Its table computes every value from (seed, row), so data of any size need no memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from declarative_train.components.counter_rng import below, key_of, normal, uniform
from declarative_train.components.data import Column, Dataset, Table

if TYPE_CHECKING:
    import numpy as np

Count = Annotated[int, Field(ge=1)]
_WORD = 8  # tokens in a word
_WORDS = 64  # words in the dictionary
_USED_BY = {
    "features": ("classification", "binary", "regression"),
    "classes": ("classification", "images"),
    "vocabulary": ("tokens",),
    "channels": ("images",),
    "size": ("images",),
}


class SyntheticDataset(Dataset):
    """Computed rows for teaching, tests and benchmarks.

    classification   columns `x` (features) and `y`, a class: normal clouds around one centre per class
    binary           columns `x` (features) and `y`, 0 or 1: normal clouds around two opposite centres
    regression       columns `x` (features) and `y`, a number: x.a + sin(2 x.b) + noise, with unit vectors a and b
    images           columns `image` (channels, size, size) and `label`: one coarse pattern per class, and noise
    tokens           column `tokens`: a text of random words from a dictionary of 64, 8 tokens each; needs a `window`"""

    type: Literal["synthetic"] = "synthetic"
    kind: Literal["classification", "binary", "regression", "images", "tokens"]
    """Kind of data."""
    rows: Count
    """Number of rows (for `tokens`: tokens). Nothing is stored, so any number is possible."""
    features: Count = 20
    """Numbers in `x`."""
    classes: Annotated[int, Field(ge=2)] = 10
    """Classes of `y` or `label`."""
    vocabulary: Annotated[int, Field(ge=2)] = 256
    """Different tokens."""
    channels: Count = 3
    """Channels of an image."""
    size: Count = 32
    """Height and width of an image."""
    noise: Annotated[float, Field(ge=0, le=1e6)] = 0.2
    """Difficulty. classification and binary: the spread of a class around its centre, in distances between two
    centres. The best possible accuracy with 10 classes and 20 or more features is about 1.00 at 0.1, 0.94 at 0.2,
    0.86 at 0.25, 0.76 at 0.3, 0.59 at 0.4; binary: 0.99 at 0.2, 0.98 at 0.25, 0.95 at 0.3, 0.89 at 0.4. regression:
    the standard deviation that no model can explain. images: that of each pixel, where the pattern has 1. tokens: the
    share of random tokens."""
    seed: int = 0
    """Seed of the data. It is separate from the recipe's seed, so that changing that one does not change the data."""

    @model_validator(mode="after")
    def _keys_belong_to_kind(self) -> SyntheticDataset:
        for name, kinds in _USED_BY.items():
            if self.kind not in kinds and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"`{name}` is not used by `kind: {self.kind}`, only by {' and '.join(kinds)}")
        if self.kind == "tokens" and self.noise > 1:
            raise ValueError(f"`noise` is the share of random tokens, so at most 1, not {self.noise:g}")
        return self

    def open(self) -> Table:
        return SyntheticTable(self)


class SyntheticTable(Table):
    def __init__(self, made: SyntheticDataset) -> None:
        self.num_rows = made.rows
        self._made = made
        self._columns: dict[str, tuple[Column, Any]] = {
            "classification": {
                "x": (Column("x", "float32", (made.features,)), self._clouds),
                "y": (Column("y", "int64", (), made.classes), self._class),
            },
            "binary": {
                "x": (Column("x", "float32", (made.features,)), self._two_clouds),
                "y": (Column("y", "int64"), self._side),
            },
            "regression": {
                "x": (Column("x", "float32", (made.features,)), self._cloud),
                "y": (Column("y", "float32"), self._curve),
            },
            "images": {
                "image": (Column("image", "float32", (made.channels, made.size, made.size)), self._image),
                "label": (Column("label", "int64", (), made.classes), self._class),
            },
            "tokens": {"tokens": (Column("tokens", "int64", (), made.vocabulary), self._token)},
        }[made.kind]
        self.columns = {name: column for name, (column, _) in self._columns.items()}

    def read(self, columns: Sequence[str], rows: slice | np.ndarray) -> dict[str, np.ndarray]:
        import numpy as np

        numbers = np.arange(*rows.indices(self.num_rows)) if isinstance(rows, slice) else rows.astype(np.int64)
        return {name: self._columns[name][1](numbers).astype(self.columns[name].dtype) for name in columns}

    def place(self, row: int) -> str:
        return f"row {row + 1} of the synthetic data"

    def _key(self, *parts: object) -> int:
        return key_of("synthetic", self._made.kind, self._made.seed, *parts)

    def _normal(self, rows: np.ndarray, width: int, key: int) -> np.ndarray:
        """Return standard normal numbers (N, width) for the N rows `rows`. They depend only on the row and `key`."""
        import numpy as np

        return normal(rows[:, None] * np.int64(width) + np.arange(width), key)

    def _class(self, rows: np.ndarray) -> np.ndarray:
        return below(rows, self._key("class"), self._made.classes)

    def _side(self, rows: np.ndarray) -> np.ndarray:
        return below(rows, self._key("class"), 2)

    def _direction(self, name: str) -> np.ndarray:
        """Return a random unit vector (features,). It is always the same for the same `name`."""
        import numpy as np

        vector = normal(np.arange(self._made.features), self._key(name))
        unit: np.ndarray = vector / np.linalg.norm(vector)
        return unit

    def _clouds(self, rows: np.ndarray) -> np.ndarray:
        """Return one point (N, features) for each of the N rows, around the centre of the row's class. The centres are
        on a sphere, about 1 apart. Each feature has variance 1."""
        import numpy as np

        width, classes = self._made.features, self._made.classes
        centres = normal(np.arange(classes * width), self._key("centres")).reshape(classes, width)
        centres /= np.linalg.norm(centres, axis=1, keepdims=True) * 2**0.5
        return self._around(rows, centres, self._class(rows), variance=0.5 / width)

    def _two_clouds(self, rows: np.ndarray) -> np.ndarray:
        import numpy as np

        half = self._direction("centre") / 2
        return self._around(rows, np.stack([-half, half]), self._side(rows), variance=0.25 / self._made.features)

    def _around(self, rows: np.ndarray, centres: np.ndarray, which: np.ndarray, variance: float) -> np.ndarray:
        noise = self._made.noise
        values: np.ndarray = centres[which] + noise * self._normal(rows, self._made.features, self._key("noise"))
        values *= (variance + noise**2) ** -0.5
        return values

    def _cloud(self, rows: np.ndarray) -> np.ndarray:
        return self._normal(rows, self._made.features, self._key("x"))

    def _curve(self, rows: np.ndarray) -> np.ndarray:
        import numpy as np

        x = self._cloud(rows)
        y: np.ndarray = x @ self._direction("a") + np.sin(2 * (x @ self._direction("b")))
        return y + self._made.noise * normal(rows, self._key("noise"))

    def _image(self, rows: np.ndarray) -> np.ndarray:
        """Return the images of N rows. The images of a class all have the same pattern, a 4 x 4 grid of normal numbers
        that is enlarged, plus noise."""
        import numpy as np

        channels, size, classes = self._made.channels, self._made.size, self._made.classes
        grids = normal(np.arange(classes * channels * 16), self._key("patterns")).reshape(classes, channels, 4, 4)
        cell = np.arange(size) * 4 // size
        patterns = grids[:, :, cell][:, :, :, cell]
        noise = self._normal(rows, channels * size * size, self._key("noise"))
        found: np.ndarray = patterns[self._class(rows)] + self._made.noise * noise.reshape(-1, channels, size, size)
        return found

    def _token(self, rows: np.ndarray) -> np.ndarray:
        import numpy as np

        vocabulary = self._made.vocabulary
        dictionary = below(np.arange(_WORDS * _WORD), self._key("dictionary"), vocabulary)
        word = below(rows // _WORD, self._key("word"), _WORDS)
        clean = dictionary[word * _WORD + rows % _WORD]
        noisy = uniform(rows, self._key("noisy")) < self._made.noise
        return np.where(noisy, below(rows, self._key("noise"), vocabulary), clean)
