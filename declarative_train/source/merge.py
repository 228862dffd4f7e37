"""Merger of the trees of several files, first to last, by the rules of `extends` (docs/language-reference.md, "Putting
recipes together").

mapping                   merged key by key; one with another `type` replaces the earlier one
list, scalar              replaces the earlier value
null                      removes a key, which must exist
keys that exclude others  the later one removes the earlier one (`epochs`, `steps`)
`loss`, `losses`          short and long form: merged if the later file has all entries of the earlier one, else the
                          later one replaces the earlier one

Every value keeps its span, and dropped values are recorded."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceABC
from typing import NamedTuple

from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.span import Span
from declarative_train.source.checks.merging import null_removes_nothing, set_inside_list
from declarative_train.source.document import Dropped
from declarative_train.source.node import Entry, Mapping, Node, Path, Scalar, Sequence, scalars

ANY = "*"  # matches every name in the paths of `MergeRules.exclusive`

_FREE: tuple[Path, ...] = (("meta",),)
"""Sections where a null without a key to remove is a value: `meta`, whose content is not checked."""


def _keep(path: Path, node: Node) -> Node:
    return node


def _no_default(path: Path) -> str | None:
    return None


def _replaces(base: Mapping, over: Mapping) -> bool:
    """Return whether the mapping `over` replaces `base` instead of being merged into it. It does if one of the two was
    written in a short form (`loss` for `losses: {loss: ...}`), and `base` has an entry that `over` lacks. A mapping of
    only nulls never replaces `base`, because nulls only remove keys."""
    if not (base.alone or over.alone) or all(is_null(entry.value) for entry in over.entries):
        return False
    return not {entry.name for entry in base.entries} <= {entry.name for entry in over.entries}


def _open_nothing(path: Path, word: Scalar, over: Mapping) -> Mapping | None:
    return None


def _accept(root: Mapping) -> Diagnostic | None:
    return None


class MergeRules(NamedTuple):
    """Functions and tables for merging that depend on the recipe language. The package `recipe` provides them.

    normalise(path, node)      long form of the value at a path, for values outside lists
    exclusive                  sets of paths of keys that exclude each other; `*` matches any name. If a later file sets
                               one key, the others are removed from the earlier files
    default_type(path)         the `type` of a mapping without one (`tensor` for a field), or None
    opened(path, word, over)   the mapping for which `word`, such as `fsdp`, stands, so that the mapping `over` of a
                               later file can be merged into it; None if there is none
    foreign(root)              the only diagnostic of a file that is not a recipe, or None
    depth                      `normalise` is not called for paths of more keys
    """

    normalise: Callable[[Path, Node], Node] = _keep
    exclusive: tuple[frozenset[Path], ...] = ()
    default_type: Callable[[Path], str | None] = _no_default
    opened: Callable[[Path, Scalar, Mapping], Mapping | None] = _open_nothing
    foreign: Callable[[Mapping], Diagnostic | None] = _accept
    depth: int = 64

    def expand(self, node: Node, path: Path = ()) -> Node:
        """Return `node`, the value at `path`, with every short form replaced by its long form, except inside lists."""
        if isinstance(node, Scalar) and node.value is None:
            return node
        node = self.normalise(path, node)
        if not isinstance(node, Mapping) or len(path) == self.depth:
            return node
        entries = tuple(Entry(e.key, self.expand(e.value, (*path, e.name))) for e in node.entries)
        if all(new.value is old.value for new, old in zip(entries, node.entries, strict=True)):
            return node
        return node.with_entries(entries)

    def alternatives(self, path: Path, name: str) -> set[str]:
        """Return the keys that are removed from the mapping at `path` when a later file sets its key `name`."""
        return {
            str(other[-1])
            for group in self.exclusive
            for mine in group
            if mine[-1] == name and _matches(mine[:-1], path)
            for other in group
            if other[-1] != name
        }


def _matches(pattern: Path, path: Path) -> bool:
    return len(pattern) == len(path) and all(p in (ANY, q) for p, q in zip(pattern, path, strict=True))


class Merger:
    """Merger of the trees of several files. Each call of `merge` merges one more file. `dropped`: the values that later
    files replaced or removed, from all calls. `diagnostics`: the mistakes found by all calls."""

    def __init__(self, rules: MergeRules) -> None:
        self.rules = rules
        self.dropped: list[Dropped] = []
        self.diagnostics: list[Diagnostic] = []

    def merge(self, base: Mapping | None, over: Mapping) -> Mapping:
        """Return `base` with `over` merged into it. Short forms in both must be expanded already
        (`MergeRules.expand`). `base`: None if there is nothing to merge into."""
        return self._mapping((), base or Mapping((), over.span), over)

    def _mapping(self, path: Path, base: Mapping, over: Mapping) -> Mapping:
        merged = {entry.name: entry for entry in base.entries}
        for entry in over.entries:
            if is_null(entry.value):
                self._remove(path, base, merged, entry, [each.name for each in over.entries])
        given = {entry.name for entry in over.entries if not is_null(entry.value)}
        for entry in over.entries:
            if is_null(entry.value):
                continue
            self._displace(path, merged, entry, given)
            here = (*path, entry.name)
            there = merged.get(entry.name)
            if there is None:
                merged[entry.name] = Entry(entry.key, self._as_new_value(here, entry.value))
            elif not (isinstance(entry.value, Scalar) and entry.value.is_empty):  # an empty value is already reported
                merged[entry.name] = Entry(entry.key, self._value(here, there.value, entry.value))
        return Mapping(tuple(merged.values()), over.span, len(merged) == 1 and (base.alone or over.alone))

    def _value(self, path: Path, base: Node, over: Node) -> Node:
        if isinstance(base, Scalar) and isinstance(over, Mapping):
            base = self.rules.opened(path, base, over) or base
        if isinstance(base, Mapping) and isinstance(over, Mapping):
            if self._another_type(path, base, over):
                kind = over.get("type")
                self.dropped.append(Dropped(path, base.span, over.span if kind is None else kind.span, "another type"))
            elif _replaces(base, over):
                self.dropped.append(Dropped(path, base.span, over.span, "alternative"))
            else:
                return self._mapping(path, base, over)
        else:
            if isinstance(base, Sequence) and isinstance(over, Mapping) and _only_positions(over):
                name = ".".join(str(part) for part in path)
                self.diagnostics.append(set_inside_list(over.entries[0].key.span, name, base.span))
                return base
            self.dropped.append(Dropped(path, base.span, over.span, "replaced"))
        return self._as_new_value(path, over)

    def _another_type(self, path: Path, base: Mapping, over: Mapping) -> bool:
        mine, theirs, default = over.get("type"), base.get("type"), self.rules.default_type(path)
        if mine is None:
            return False
        name = mine.text if isinstance(mine, Scalar) else None
        there = theirs.text if isinstance(theirs, Scalar) else default
        return name is not None and there is not None and name != there

    def _remove(
        self, path: Path, base: Mapping, merged: dict[str, Entry], entry: Entry, own_keys: SequenceABC[str]
    ) -> None:
        gone = merged.pop(entry.name, None)
        if gone is not None:
            self.dropped.append(Dropped((*path, entry.name), gone.value.span, entry.value.span, "removed"))
        elif _is_free(path):
            merged[entry.name] = entry
        else:
            self._report_null(path, entry, [each.name for each in base.entries], own_keys)

    def _report_null(
        self, path: Path, entry: Entry, known: SequenceABC[str] = (), own_keys: SequenceABC[str] = ()
    ) -> None:
        where = f"`{'.'.join(str(part) for part in path)}`" if path else "the recipe"
        self.diagnostics.append(null_removes_nothing(entry, where, known, own_keys))

    def _displace(self, path: Path, merged: dict[str, Entry], entry: Entry, given: set[str]) -> None:
        for name in sorted(self.rules.alternatives(path, entry.name) - given):
            gone = merged.pop(name, None)
            if gone is not None:
                self.dropped.append(Dropped((*path, name), gone.value.span, entry.key.span, "alternative"))

    def _as_new_value(self, path: Path, node: Node) -> Node:
        """Return a copy of `node` without nulls, for a key that the base does not have. Report each null: it is meant
        to remove a key of the base, and there is none."""
        return self._without_nulls(path, node) if any(map(is_null, scalars(node, plain=False))) else node

    def _without_nulls(self, path: Path, node: Node) -> Node:
        if isinstance(node, Scalar) or _is_free(path):
            return node
        if isinstance(node, Sequence):
            items = tuple(self._without_nulls((*path, i), item) for i, item in enumerate(node.items))
            return node if all(a is b for a, b in zip(items, node.items, strict=True)) else Sequence(items, node.span)
        entries: list[Entry] = []
        for entry in node.entries:
            if is_null(entry.value):
                self._report_null(path, entry)
            else:
                entries.append(Entry(entry.key, self._without_nulls((*path, entry.name), entry.value)))
        return node.with_entries(entries)


def _is_free(path: Path) -> bool:
    return any(_matches(free, path[: len(free)]) for free in _FREE)


def is_null(node: Node) -> bool:
    """Return whether a node is a written `null` or `~`. For a key without any value it is False: that is a mistake,
    which was reported when the file was read.
    """
    return isinstance(node, Scalar) and node.value is None and not node.is_empty


def _only_positions(node: Mapping) -> bool:
    return bool(node.entries) and all(entry.name.isdigit() for entry in node.entries)


def find_changed_orders(base: Mapping, final: Mapping) -> dict[Path, tuple[str, ...]]:
    """Return {path of a mapping: its keys in `base`} for each mapping in `base` whose keys, or their order, are
    different in `final`.
    """
    found: dict[Path, tuple[str, ...]] = {}

    def walk(path: Path, before: Node, after: Node | None) -> None:
        if before is after or not isinstance(before, Mapping) or not isinstance(after, Mapping):
            return
        names = tuple(entry.name for entry in before.entries)
        if names != tuple(entry.name for entry in after.entries):
            found[path] = names
        for entry in before.entries:
            walk((*path, entry.name), entry.value, after.get(entry.name))

    walk((), base, final)
    return found


def drop_entries(node: Mapping, *names: str) -> Mapping:
    """Return the mapping without the entries whose keys are in `names`."""
    return node.without(names)


def whole(path: str) -> Span:
    """Return an empty span at the start of the file `path`, for a message about the whole file."""
    return Span(path, 1, 1, 1, 1)
