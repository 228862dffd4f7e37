"""How many elements of state each update rule keeps for a parameter. A test steps every optimizer and counts."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod


def num_state_elements(optimizer: Mapping[str, object], shape: tuple[int, ...]) -> int:
    """Tensors as large as the parameter or its margins; step counters are not counted. 0 for a rule not known here."""
    kind = optimizer["type"]
    if kind == "adafactor" and len(shape) > 1:
        return prod(shape[:-1]) + prod(shape[:-2]) * shape[-1]
    return _num_copies(optimizer) * prod(shape)


def _num_copies(optimizer: Mapping[str, object]) -> int:
    kind = optimizer["type"]
    if kind in ("adam", "adamw"):
        return 3 if optimizer.get("amsgrad") else 2
    if kind == "rmsprop":
        return 1 + bool(optimizer.get("centered")) + bool(optimizer.get("momentum"))
    if kind == "sgd":
        return int(bool(optimizer.get("momentum")))
    return 1 if kind in ("adafactor", "adagrad", "lion", "muon") else 0
