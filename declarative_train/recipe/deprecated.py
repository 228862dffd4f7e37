"""Versions: whether one meets `requires`, and keys that the language once had -> what they are called now. A recipe
that holds one still runs, with a warning.

A key goes in here when it is renamed, and comes out with the version after next; its meaning never changes on the way.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from operator import eq, ge, gt, le, lt, ne
from typing import NamedTuple

from declarative_train.source.node import Entry, Mapping, Path, Scalar


class Renamed(NamedTuple):
    name: str
    since: str
    """The version that brought the new name."""


DEPRECATED: dict[Path, Renamed] = {}
"""By the old path, such as ("training", "passes"); `*` stands for any one name."""


def renamed(path: Path, node: Mapping) -> Mapping:
    """`node`, which stands at `path`, with today's keys. One that has both is left: the old key is then unknown."""
    if not DEPRECATED:
        return node
    entries = tuple(_today(path, entry, node) for entry in node)
    return node if all(a is b for a, b in zip(entries, node, strict=True)) else node.with_entries(entries)


def _today(path: Path, entry: Entry, node: Mapping) -> Entry:
    found = lookup((*path, entry.name))
    if found is None or node.entry(found.name) is not None:
        return entry
    key = Scalar(entry.name, found.name, entry.key.span)  # typed one way, read the other
    return Entry(key, entry.value)


def lookup(path: Path) -> Renamed | None:
    """What the key at `path`, under its old name, is called."""
    return next((new for old, new in DEPRECATED.items() if _is(old, path)), None)


def _is(pattern: Path, path: Path) -> bool:
    return len(pattern) == len(path) and all(part in ("*", each) for part, each in zip(pattern, path, strict=True))


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
