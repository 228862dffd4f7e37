"""Table of the transforms (changes of the images of a sample) that a recipe can name under `data.transforms`."""

from __future__ import annotations

from declarative_train.components.registry import Registry
from declarative_train.components.transform import Transform

TRANSFORMS: Registry[Transform] = Registry(
    "transform",
    __name__,
    {},
)
