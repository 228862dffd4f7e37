"""Plan -> JSON -> the same Plan, to the bit; a plan of another version is refused."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from declarative_train.components.datasets.files import masked
from declarative_train.plan.plan import PLAN_VERSION, Plan


class PlanError(Exception):
    """A text that is not a plan of this version; the message says why, in one line."""


@cache
def _adapter() -> TypeAdapter[Plan]:
    return TypeAdapter(Plan)


def to_json(plan: Plan) -> str:
    """Keys in the order of the classes, one value per line: made to be read and compared."""
    return json.dumps(to_data(plan), indent=1, ensure_ascii=False) + "\n"


def save(plan: Plan, path: Path) -> None:
    """Readable for its owner alone where a URL in it holds a password or a key: a plan must run without its recipe, so
    it holds what the recipe's templates gave. Raises OSError."""
    text = to_json(plan)
    mode = 0o666 if masked(text) == text else 0o600
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w", encoding="utf-8") as file:
        if mode == 0o600:
            os.fchmod(file.fileno(), mode)  # of one that was there before
        file.write(text)


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
