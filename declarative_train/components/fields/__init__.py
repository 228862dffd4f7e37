"""Table of the field types that a recipe can name under `data.fields`. A field is one tensor per sample."""

from __future__ import annotations

from declarative_train.components.data import Field
from declarative_train.components.registry import Registry

FIELDS: Registry[Field] = Registry(
    "field",
    __name__,
    {
        "category": "category.CategoryField",
        "tensor": "tensor.TensorField",
    },
)
