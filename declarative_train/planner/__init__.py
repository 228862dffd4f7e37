"""The planner: `compile` makes a plan of a recipe, `describe` and `summary` print one.

The names are imported when they are first used, since the ranks need none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from declarative_train.planner.compiler import compile  # noqa: A004
    from declarative_train.planner.text.describe import describe, summary

__all__ = ["compile", "describe", "summary"]

_PLACES = {"compile": "compiler", "describe": "text.describe", "summary": "text.describe"}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    found = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    globals()[name] = found
    return found
