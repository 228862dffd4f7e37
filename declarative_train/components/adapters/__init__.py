"""Table of the adapter types that a recipe can name; packs (`declarative_train/packs`) provide all of them. An adapter
adds trained parameters to a frozen weight."""

from declarative_train.components.adapters.adapter import Adapter
from declarative_train.components.registry import Registry

ADAPTERS: Registry[Adapter] = Registry("adapter", "declarative_train.components.adapters", {})

__all__ = ["ADAPTERS"]
