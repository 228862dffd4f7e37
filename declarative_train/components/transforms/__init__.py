"""Transforms: changes of the pictures of a sample, under `data.transforms`; the packs bring them."""

from __future__ import annotations

from declarative_train.components.data import Transform
from declarative_train.components.registry import Registry

TRANSFORMS: Registry[Transform] = Registry(
    "transform",
    __name__,
    {},
)
