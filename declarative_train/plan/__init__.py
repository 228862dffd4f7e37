"""The Plan: every decision of a run as data. It can be saved as JSON; before a saved plan is run, the files that it was
made from are compared with their fingerprints.

Names are imported on first use, since ranks need the Plan class but not the compiler."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from declarative_train.plan.codec import PlanError, from_json, to_json
    from declarative_train.plan.file_fingerprints import staleness
    from declarative_train.plan.plan import Plan

__all__ = ["Plan", "PlanError", "from_json", "staleness", "to_json"]

_MODULES = {
    "Plan": "plan",
    "PlanError": "codec",
    "from_json": "codec",
    "staleness": "file_fingerprints",
    "to_json": "codec",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    found = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = found
    return found
