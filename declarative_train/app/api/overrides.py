"""Overrides in the Python API: the argument `set={"training.epochs": 3}` has the effect of `--set
training.epochs=3`."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence

from declarative_train.app.api.compiling import Overrides
from declarative_train.app.api.errors import WRONG_USE, DtrainError


def overrides(set: Mapping[str, object] | None, with_: Sequence[str | os.PathLike[str]] | str) -> Overrides:
    """Return the Overrides for the arguments of `load`. `set`: values by dotted path; `with_`: files, which are merged
    first, in this order. Raises DtrainError."""
    files = [with_] if isinstance(with_, str | os.PathLike) else with_
    values = [f"{key}={_yaml(key, value)}" for key, value in (set or {}).items()]
    return Overrides([os.fspath(each) for each in files], values)


def _yaml(key: str, value: object) -> str:
    """Return a value as YAML text. `key`: its dotted path, for the error if YAML cannot represent it."""
    plain = _plain(key, value)
    if isinstance(plain, float) and not math.isfinite(plain):
        return ".nan" if math.isnan(plain) else f"{'-' if plain < 0 else ''}.inf"
    return json.dumps(plain, ensure_ascii=False)


def _plain(key: str, value: object) -> object:
    if value is None or isinstance(value, bool | str | int | float):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(key, each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(key, each) for each in value]
    if callable(item := getattr(value, "item", None)) and getattr(value, "shape", None) == ():
        return _plain(key, item())  # number from numpy or torch
    raise DtrainError(
        f"set: `{key}` is a {type(value).__name__}, and a recipe contains numbers, words, lists and mappings",
        exit_code=WRONG_USE,
    )
