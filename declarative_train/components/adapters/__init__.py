"""Adapters: parameters trained in addition to a frozen weight. Packs bring them."""

from declarative_train.components.adapters.adapter import Adapter
from declarative_train.components.registry import Registry

ADAPTERS: Registry[Adapter] = Registry("adapter", "declarative_train.components.adapters", {})

__all__ = ["ADAPTERS"]
