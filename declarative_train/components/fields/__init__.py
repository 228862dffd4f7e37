"""Fields: what a batch can hold, under `data.fields`."""

from __future__ import annotations

from declarative_train.components.data import Field
from declarative_train.components.registry import Registry

FIELDS: Registry[Field] = Registry(
    "field",
    __name__,
    {
        "boxes": "boxes.BoxesField",
        "category": "category.CategoryField",
        "image": "image.ImageField",
        "mask": "mask.MaskField",
        "tensor": "tensor.TensorField",
        "tokens": "tokens.TokensField",
    },
)
