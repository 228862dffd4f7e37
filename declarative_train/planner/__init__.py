"""Planner: `compile` turns a recipe into a plan; `describe` and `summary` format a plan as text. These names are
imported on first use, because the ranks, the processes that train, use none of them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from declarative_train.planner.compiler import compile  # noqa: A004
    from declarative_train.planner.text.describe import describe, summary

__all__ = ["compile", "describe", "summary"]

_MODULES = {"compile": "compiler", "describe": "text.describe", "summary": "text.describe"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    found = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = found
    return found
