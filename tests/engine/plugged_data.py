"""A plugin of the tests: what makes samples, written as users write it."""
# mypy: ignore-errors

import random as pythons

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset

from declarative_train.plugins import Field, Source, Transform

# --


class Rings(Dataset):
    """Points on three rings, drawn when it is made."""

    columns = {"x": {"dtype": "float32", "shape": (2,)}, "ring": "int64"}

    def __init__(self, rows: int = 300):
        self.angle = torch.rand(rows) * 6.28
        self.ring = torch.arange(rows) % 3

    def __len__(self):
        return len(self.ring)

    def __getitem__(self, index):
        angle = self.angle[index]
        return torch.stack([angle.cos(), angle.sin()]) * (1 + self.ring[index]), self.ring[index]


class Stripes(Dataset):
    """Pictures of Pillow with stripes this way or that, which are made when they are asked for."""

    columns = {"picture": "image", "way": {"dtype": "int64", "num_values": 2}}

    def __init__(self, rows: int = 60, torn: int | None = None):
        self.rows, self.torn = rows, torn

    def __len__(self):
        return self.rows

    def __getitem__(self, index):
        if index == self.torn:
            raise OSError("no such stripe")
        pixels = np.random.default_rng(index).integers(0, 100, (12, 12, 3), np.uint8)
        pixels[:: 2 + index % 3] += 120
        return {"picture": Image.fromarray(pixels if index % 2 else pixels.transpose(1, 0, 2)), "way": index % 2}


class Waves(Source):
    """Rows at once."""

    columns = {"x": {"dtype": "float32", "shape": (2,)}, "ring": {"dtype": "int64", "num_values": 3}}

    def __init__(self, rows: int = 90):
        self.rows = rows

    def __len__(self):
        return self.rows

    def read(self, rows, columns):
        every = {"x": np.stack([np.sin(rows), np.cos(rows)], 1).astype(np.float32), "ring": rows % 3}
        return {name: every[name] for name in columns}


class Polar(Field):
    """Angle and radius of a point."""

    shape = ("copies", 2)

    def __init__(self, copies: int = 1):
        self.copies = copies

    def decode(self, x):
        return np.tile(np.asarray([np.arctan2(x[1], x[0]), np.hypot(x[0], x[1])], np.float32), (self.copies, 1))


class Noise(Transform):
    """On the numbers of pictures, by the generator that is given."""

    on_numbers = True
    interval = (-4, 5)

    def __init__(self, amount: float = 0.1):
        self.amount = amount

    def apply(self, picture, random):
        return (picture + self.amount * random.normal(size=picture.shape)).clip(-4, 5).astype(np.float32)


class Tilt(Transform):
    """By the generators of others, as transforms of torchvision draw."""

    is_random = True

    def apply(self, picture):
        return picture.rotate(30 * float(torch.rand(())) - 15 * np.random.rand() + pythons.random())


class Grid(Transform):
    """Always the same; another size."""

    size = ("side", "side")

    def __init__(self, side: int):
        self.side = side

    def apply(self, picture):
        return picture.resize((self.side, self.side), Image.Resampling.NEAREST)
