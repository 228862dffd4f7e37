"""Adapters: parameters trained in addition to a frozen weight; one file per family."""

from declarative_train.components.component import Adapter
from declarative_train.components.registry import Registry

ADAPTERS: Registry[Adapter] = Registry(
    "adapter",
    "declarative_train.components.adapters",
    {
        "dora": "lora.Dora",
        "lora": "lora.Lora",
    },
)

__all__ = ["ADAPTERS"]
