"""Keys that the language once had -> what they are called now. A recipe that holds one still runs, with a warning.

A key goes in here when it is renamed, and comes out with the version after next; its meaning never changes on the way.
"""

from __future__ import annotations

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
