"""Component mappings of a DataSpec <-> the components that they describe."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeVar

from pydantic import ValidationError

from declarative_train.components.component import Component
from declarative_train.data.data_error import DataError

C = TypeVar("C", bound=Component)


def to_mapping(component: Component) -> dict[str, object]:
    """JSON-able, `type` included."""
    found: dict[str, object] = component.model_dump(mode="json", by_alias=True)
    return found


def revive(table: Mapping[str, type[C]], mapping: Mapping[str, object]) -> C:
    """Through JSON, where a list stands for a tuple even in strict models. Raises DataError."""
    kind = str(mapping.get("type"))
    if kind not in table:
        raise DataError(f"the plan names `{kind}`, which this version of dtrain does not have")
    try:
        return table[kind].model_validate_json(json.dumps(mapping))
    except ValidationError as error:
        raise DataError(
            f"the plan's `{kind}` does not fit this version of dtrain: {error.errors()[0]['msg']}"
        ) from error
