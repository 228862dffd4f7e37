"""Transforms: changes of the images of a sample, under `data.transforms`; the packs bring them."""

from __future__ import annotations

from declarative_train.components.registry import Registry
from declarative_train.components.transform import Transform

TRANSFORMS: Registry[Transform] = Registry(
    "transform",
    __name__,
    {},
)
