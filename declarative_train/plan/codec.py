"""Plan -> JSON -> the same Plan, to the bit; a plan of another version is refused. And the two names of a plan, made
from what it holds:

`fingerprint` covers what decides the numbers of a run: model, data, objective, optimizer, batch size, seed. Layout,
logging, and where files lie are left out, so that a checkpoint knows its model on another layout, in another folder.
`identity` covers the whole plan.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import cast

from pydantic import TypeAdapter, ValidationError

from declarative_train.components.plugin_components import PLUGIN
from declarative_train.core.json_text import parse_json
from declarative_train.core.secrets import in_texts, masked, names_in, with_names, with_values
from declarative_train.plan.plan import PLAN_VERSION, Plan

_DECIDING = ("seed", "batch_graph", "graph", "parameters", "objective", "weights")
_TRAINING = (
    *("num_steps", "optimizer", "lr_schedule", "num_warmup_steps"),
    *("clip_grad_norm", "precision", "non_finite", "ema_decay"),
)
_PLACES = frozenset({"path", "folder", "workers", "files", "statistics_from"})
_SIZES = frozenset({"held_bytes"})
_LOOKED_AT = frozenset({"recipe", "settings"})  # keys of a plan that decide nothing, and name variables as they are
_OF_PLUGINS = frozenset({PLUGIN})  # where their code lies


class PlanError(Exception):
    """A text that is not a plan of this version; the message says why, in one line."""


@cache
def adapter() -> TypeAdapter[Plan]:
    return TypeAdapter(Plan)


def to_json(plan: Plan) -> str:
    """Keys in the order of the classes, one value per line: made to be read and compared."""
    return _as_text(to_data(plan))


def to_masked_json(plan: Plan) -> str:
    """Return a plan to be looked at, without secrets."""
    return _as_text(in_texts(masked, to_data(plan)))


def to_saved_json(plan: Plan) -> str:
    """Return a plan to be run: it names the variables of the environment whose values it needs."""
    return _as_text(in_texts(with_names, to_data(plan)))


def _as_text(data: dict[str, object]) -> str:
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def save(plan: Plan, path: Path) -> None:
    """Write a plan that can be run. It is readable for its owner alone where it holds a password or a key that is not a
    variable of the environment: a plan must run without its recipe. Raises OSError."""
    text = to_saved_json(plan)
    mode = 0o666 if masked(text) == text else 0o600
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w", encoding="utf-8") as file:
        if mode == 0o600:
            os.fchmod(file.fileno(), mode)  # of one that was there before
        file.write(text)


def to_data(plan: Plan) -> dict[str, object]:
    """Plain values: what JSON can hold."""
    data: dict[str, object] = adapter().dump_python(plan, mode="json")
    return data


def from_json(text: str) -> Plan:
    """Return the plan of a text, with the values of the variables that it names; those that are not set stay names.
    Raises PlanError."""
    try:
        found = parse_json(text)
    except ValueError as problem:
        raise PlanError(f"it is not JSON: {problem}") from None
    if not isinstance(found, dict) or "version" not in found:
        raise PlanError("it has no `version`, so it is not a plan")
    if found["version"] != PLAN_VERSION:
        raise PlanError(f"it has plan version {found['version']}, this dtrain reads version {PLAN_VERSION}")
    if names_in(text):
        own = {key: found[key] for key in _LOOKED_AT if key in found}
        text = json.dumps(in_texts(with_values, found) | own)
    try:
        return adapter().validate_json(text)
    except ValidationError as problem:
        first = problem.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise PlanError(f"`{place}`: {first['msg'].lower()}") from None


def through_json(plan: Plan) -> Plan:
    """As it would be read again."""
    return adapter().validate_json(json.dumps(to_data(plan)))


def signed(plan: Plan) -> Plan:
    """The plan with its fingerprint and identity."""
    plan = replace(plan, fingerprint="", identity="")
    plan = replace(plan, fingerprint=_digest(deciding(plan)))
    return replace(plan, identity=_digest(in_texts(with_names, to_data(plan))))


def unset_variables(plan: Plan) -> list[str]:
    """Return the variables of the environment that a plan needs to be run and that are not set."""
    data = to_data(plan)
    return names_in(json.dumps([item for key, item in data.items() if key not in _LOOKED_AT]))


def unset_for_model(plan: Plan) -> list[str]:
    """Return the variables that are not set and without which its model and its fields are not known."""
    data = to_data(plan)
    parts = [data[key] for key in ("batch_graph", "graph", "parameters", "objective")]
    return names_in(json.dumps([*parts, cast(Mapping[str, object], data["data"])["fields"]]))


def is_as_signed(text: str) -> bool:
    """Whether a plan's saved JSON is what was signed, to the last value."""
    data = json.loads(text)
    return isinstance(data, dict) and _digest(data | {"identity": ""}) == data.get("identity")


def deciding(plan: Plan) -> dict[str, object]:
    """What the fingerprint covers, as plain values."""
    data = to_data(plan)
    training = cast(Mapping[str, object], data["training"])
    found = {key: data[key] for key in _DECIDING}
    found |= {"training": {key: training[key] for key in _TRAINING}}
    found |= {"global_batch_size": plan.batch.global_batch_size, "data": _without(_PLACES | _SIZES, data["data"])}
    if plan.plugins:
        for key in ("parameters", "objective", "training"):
            found[key] = _without(_OF_PLUGINS, found[key])
    return found | {"contents": sorted(record.sha256 for record in plan.data.files)}


def _without(keys: frozenset[str], value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _without(keys, item) for key, item in value.items() if key not in keys}
    return [_without(keys, item) for item in value] if isinstance(value, list) else value


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
