"""Who does what, where and when: `compile` makes a plan, `describe` and `summary` show it, the rest keeps it.

Looked up when asked for: the ranks need the noun alone, without the compiler behind it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from declarative_train.plan.codec import PlanError, from_json, to_json
    from declarative_train.plan.file_fingerprints import staleness
    from declarative_train.plan.plan import Plan
    from declarative_train.planner.compiler import compile  # noqa: A004
    from declarative_train.planner.text.describe import describe, summary

__all__ = ["Plan", "PlanError", "compile", "describe", "from_json", "staleness", "summary", "to_json"]

_PLACES = {
    "Plan": "plan",
    "PlanError": "codec",
    "compile": "compiler",
    "describe": "text.describe",
    "from_json": "codec",
    "staleness": "stale",
    "summary": "text.describe",
    "to_json": "codec",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    found = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    globals()[name] = found
    return found
