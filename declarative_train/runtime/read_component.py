"""A loss, metric, optimizer or lr schedule of the plan, as an object again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeVar

from declarative_train.components.component import Component
from declarative_train.components.registry import Registry

C = TypeVar("C", bound=Component)


def read_component(table: Registry[C], component: Mapping[str, object]) -> C:
    """Raises LookupError for a type that the table does not have."""
    # strict models take a list for a tuple only from JSON, which is what a plan holds
    return table[str(component["type"])].model_validate_json(json.dumps(component))
