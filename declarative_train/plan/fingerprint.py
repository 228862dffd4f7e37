"""The two names of a plan, made from what it holds.

`fingerprint` covers what decides the numbers of a run: model, data, objective, optimizer, batch size, seed. Layout,
logging, and where files lie are left out, so that a checkpoint knows its model on another layout, in another folder.
`identity` covers the whole plan.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from declarative_train.plan.codec import to_data
from declarative_train.plan.plan import Plan

_DECIDING = ("seed", "batch_graph", "graph", "parameters", "objective", "weights")
_TRAINING = ("num_steps", "optimizer", "lr_schedule", "num_warmup_steps", "clip_grad_norm", "precision", "non_finite")
_PLACES = frozenset({"path", "workers", "files", "statistics_from"})


def signed(plan: Plan) -> Plan:
    """The plan with its fingerprint and identity."""
    plan = replace(plan, fingerprint="", identity="")
    plan = replace(plan, fingerprint=_digest(deciding(plan)))
    return replace(plan, identity=_digest(to_data(plan)))


def is_as_signed(text: str) -> bool:
    """Whether a plan's JSON is what was signed, to the last value."""
    data = json.loads(text)
    return isinstance(data, dict) and _digest(data | {"identity": ""}) == data.get("identity")


def deciding(plan: Plan) -> dict[str, object]:
    """What the fingerprint covers, as plain values."""
    data = to_data(plan)
    training = cast(Mapping[str, object], data["training"])
    found = {key: data[key] for key in _DECIDING}
    found |= {"training": {key: training[key] for key in _TRAINING}}
    found |= {"global_batch_size": plan.batch.global_batch_size, "data": _without_places(data["data"])}
    return found | {"contents": sorted(record.sha256 for record in plan.data.files)}


def _without_places(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _without_places(item) for key, item in value.items() if key not in _PLACES}
    return [_without_places(item) for item in value] if isinstance(value, list) else value


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
