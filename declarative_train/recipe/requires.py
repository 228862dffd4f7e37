"""`requires: dtrain>=0.1`: whether a version meets it."""

from __future__ import annotations

import re
from collections.abc import Callable
from operator import eq, ge, gt, le, lt, ne

_FORM = re.compile(r"dtrain\s*(?P<conditions>[<>=!].*)")
_CONDITION = re.compile(r"\s*(?P<sign>>=|<=|==|!=|>|<)\s*(?P<version>\d+(?:\.\d+)*)\s*")
_SIGNS: dict[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]] = {
    "!=": ne,
    "<": lt,
    "<=": le,
    "==": eq,
    ">": gt,
    ">=": ge,
}


def is_met(requires: str, version: str) -> bool:
    """Raises ValueError with what was wanted."""
    form = _FORM.fullmatch(requires.strip())
    conditions = form["conditions"].split(",") if form is not None else [""]
    met = True
    for condition in conditions:
        parts = _CONDITION.fullmatch(condition)
        if parts is None:
            raise ValueError(f"`{requires}` is not of the form `dtrain>=0.1` or `dtrain>=0.1,<0.3`")
        met = met and _SIGNS[parts["sign"]](*_padded(_numbers(version), _numbers(parts["version"])))
    return met


def _numbers(version: str) -> tuple[int, ...]:
    """Of the release: `0.2.0rc1` counts as 0.2.0."""
    return tuple(int(number) for number in re.findall(r"\d+", version.split("+")[0])[:3])


def _padded(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    length = max(len(one), len(other))
    return one + (0,) * (length - len(one)), other + (0,) * (length - len(other))
