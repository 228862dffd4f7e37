"""JSON form of a plan, which keeps every number exactly, and the two hashes of a plan. A plan of another version is
rejected.

fingerprint  hash of what decides the numbers of a run (model, data, objective, optimizer, batch size, seed). It is
             equal for plans that differ only in layout, logging or folder: a checkpoint of one fits the others
identity     hash of the whole plan"""

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
from declarative_train.core.secrets import in_texts, masked, names_in, with_names, with_values
from declarative_train.core.untrusted import parse_json
from declarative_train.plan.model_parts import join_models
from declarative_train.plan.plan import PLAN_VERSION, Plan

_DECIDING = ("seed", "batch_graph", "graph", "parameters", "objective", "weights")
_TRAINING = (
    *("num_steps", "optimizer", "lr_schedule", "num_warmup_steps"),
    *("clip_grad_norm", "precision", "non_finite", "ema_decay"),
)
_PLACES = frozenset({"path", "folder", "workers", "files", "statistics_from"})
_SIZES = frozenset({"held_bytes"})
_NOT_DECIDING = frozenset(
    {"recipe", "settings"}
)  # keys of a plan that do not change a run; references to variables in them are not replaced
_OF_PLUGINS = frozenset({PLUGIN})  # keys that only say where the code of a plugin is


class PlanError(Exception):
    """Error: a text is not a plan of this version. The message is the reason, in one line."""


@cache
def adapter() -> TypeAdapter[Plan]:
    return TypeAdapter(Plan)


def to_json(plan: Plan) -> str:
    """Return a plan as JSON text for reading and comparing: keys in the order of the dataclasses' fields, one value per
    line."""
    return _as_text(to_data(plan))


def to_masked_json(plan: Plan) -> str:
    """Return a plan as JSON text for display: passwords and keys are masked."""
    return _as_text(in_texts(masked, to_data(plan)))


def to_saved_json(plan: Plan) -> str:
    """Return a plan as JSON text from which it can be run again. A secret from an environment variable is replaced by a
    reference to this variable."""
    return _as_text(in_texts(with_names, to_data(plan)))


def _as_text(data: dict[str, object]) -> str:
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def save(plan: Plan, path: Path) -> None:
    """Write a plan to a file from which it can be run. Raises OSError.

    A secret that is not in an environment variable is written too. In this case only the owner of the file may read
    it.
    """
    text = to_saved_json(plan)
    mode = 0o666 if masked(text) == text else 0o600
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w", encoding="utf-8") as file:
        if mode == 0o600:
            os.fchmod(file.fileno(), mode)  # for a file that existed before
        file.write(text)


def to_data(plan: Plan) -> dict[str, object]:
    """Return a plan as dicts, lists, numbers and strings."""
    data: dict[str, object] = adapter().dump_python(plan, mode="json")
    return data


def from_json(text: str) -> Plan:
    """Return the plan in a JSON text. References to environment variables are replaced by the values of these
    variables, if they are set. Raises PlanError."""
    try:
        found = parse_json(text)
    except ValueError as problem:
        raise PlanError(f"it is not JSON: {problem}") from None
    if not isinstance(found, dict) or "version" not in found:
        raise PlanError("it has no `version`, so it is not a plan")
    if found["version"] != PLAN_VERSION:
        raise PlanError(f"it has plan version {found['version']}, this dtrain reads version {PLAN_VERSION}")
    if names_in(text):
        own = {key: found[key] for key in _NOT_DECIDING if key in found}
        text = json.dumps(in_texts(with_values, found) | own)
    try:
        return adapter().validate_json(text)
    except ValidationError as problem:
        first = problem.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise PlanError(f"`{place}`: {first['msg'].lower()}") from None


def through_json(plan: Plan) -> Plan:
    """Return a copy of the plan as it is after saving and loading."""
    return adapter().validate_json(json.dumps(to_data(plan)))


def sign(plan: Plan) -> Plan:
    """Return the plan with its two hashes, `fingerprint` and `identity`, filled in."""
    plan = replace(plan, fingerprint="", identity="")
    plan = replace(plan, fingerprint=_digest(select_deciding(plan)))
    return replace(plan, identity=_digest(in_texts(with_names, to_data(plan))))


def find_unset_variables(plan: Plan) -> list[str]:
    """Return the names of the environment variables that a run of the plan needs, but that are not set."""
    data = to_data(plan)
    return names_in(json.dumps([item for key, item in data.items() if key not in _NOT_DECIDING]))


def find_unset_for_model(plan: Plan) -> list[str]:
    """Return the names of the environment variables that the model or the fields of the plan need, but that are not
    set."""
    data = to_data(plan)
    parts = [data[key] for key in ("batch_graph", "graph", "parameters", "objective")]
    return names_in(json.dumps([*parts, cast(Mapping[str, object], data["data"])["fields"]]))


def is_as_signed(text: str) -> bool:
    """Return whether the JSON text of a plan is unchanged since it was signed: its key `identity` is equal to the hash
    of the other values."""
    data = json.loads(text)
    return isinstance(data, dict) and _digest(data | {"identity": ""}) == data.get("identity")


def select_deciding(plan: Plan) -> dict[str, object]:
    """Return the values of a plan that its fingerprint covers, as dicts, lists, numbers and strings."""
    data = to_data(join_models(plan))
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
