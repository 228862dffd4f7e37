"""Plan -> JSON -> the same Plan, to the bit; a plan of another version is refused."""

from __future__ import annotations

import json
from functools import cache

from pydantic import TypeAdapter, ValidationError

from declarative_train.plan.plan import PLAN_VERSION, Plan


class PlanError(Exception):
    """A text that is not a plan of this version; the message says why, in one line."""


@cache
def _adapter() -> TypeAdapter[Plan]:
    return TypeAdapter(Plan)


def to_json(plan: Plan) -> str:
    """Keys in the order of the classes, one value per line: made to be read and compared."""
    return json.dumps(to_data(plan), indent=1, ensure_ascii=False) + "\n"


def to_data(plan: Plan) -> dict[str, object]:
    """Plain values: what JSON can hold."""
    data: dict[str, object] = _adapter().dump_python(plan, mode="json")
    return data


def from_json(text: str) -> Plan:
    """Raises PlanError."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise PlanError(f"it is not JSON: {problem}") from None
    if not isinstance(found, dict) or "version" not in found:
        raise PlanError("it has no `version`, so it is not a plan")
    if found["version"] != PLAN_VERSION:
        raise PlanError(f"it has plan version {found['version']}, this dtrain reads version {PLAN_VERSION}")
    try:
        return _adapter().validate_json(text)
    except ValidationError as problem:
        first = problem.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise PlanError(f"`{place}`: {first['msg'].lower()}") from None
