"""Trees of several files, first to last -> one tree, by the rules of `extends`
(docs/language-reference.md, "Putting recipes together").

Mappings merge; lists and scalars replace; a mapping of another `type` replaces the base's whole; `null` removes, and
must find something to remove; of exclusive alternatives (`epochs`, `steps`) the later displaces the earlier, and so
does of a short form of one entry (`loss`) and the long one (`losses`) that does not name that entry; new keys go to the
end. Every value keeps its span, and what is dropped is recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceABC
from typing import NamedTuple

from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.span import Span
from declarative_train.source.checks.merging import null_removes_nothing, set_inside_list
from declarative_train.source.document import Dropped
from declarative_train.source.node import Entry, Mapping, Node, Path, Scalar, Sequence, scalars

ANY = "*"  # a part of a path in MergeRules.exclusive that stands for every name

_FREE: tuple[Path, ...] = (("meta",),)
"""Where a null is a value if there is nothing to remove: the section that nobody checks."""


def _as_it_is(path: Path, node: Node) -> Node:
    return node


def _no_default(path: Path) -> str | None:
    return None


def _is_another_form(base: Mapping, over: Mapping) -> bool:
    """Return whether one is the short form of an entry and the other the long form of several; nulls only remove."""
    if not (base.alone or over.alone) or all(_is_null(entry.value) for entry in over.entries):
        return False
    return not {entry.name for entry in base.entries} <= {entry.name for entry in over.entries}


def _not_opened(path: Path, word: Scalar, over: Mapping) -> Mapping | None:
    return None


def _none_foreign(root: Mapping) -> Diagnostic | None:
    return None


class MergeRules(NamedTuple):
    """What merging must know of the language; the recipe room fills it in.

    `normalise` expands the short form at a path, called from the root down for every value that is not inside a list
    and not deeper than `depth`.
    `exclusive` are sets of sibling keys that displace each other, as paths; `*` stands for any name.
    `default_type` is the `type` of a mapping that does not say it (a field without `type` is a `tensor`).
    `opened` is the mapping that a word of a base stands for, when this mapping meets it.
    `foreign` tells that a file is not of the language at all, so that nothing else is said of it.
    """

    normalise: Callable[[Path, Node], Node] = _as_it_is
    exclusive: tuple[frozenset[Path], ...] = ()
    default_type: Callable[[Path], str | None] = _no_default
    opened: Callable[[Path, Scalar, Mapping], Mapping | None] = _not_opened
    foreign: Callable[[Mapping], Diagnostic | None] = _none_foreign
    depth: int = 64

    def expand(self, node: Node, path: Path = ()) -> Node:
        """`node` with every short form in its long form, lists left as they are."""
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
        """The siblings that `name` in the mapping at `path` displaces."""
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
    """Merges trees one after the other; `dropped` and `diagnostics` grow on the way."""

    def __init__(self, rules: MergeRules) -> None:
        self.rules = rules
        self.dropped: list[Dropped] = []
        self.diagnostics: list[Diagnostic] = []

    def merge(self, base: Mapping | None, over: Mapping) -> Mapping:
        """Both expanded already (`MergeRules.expand`)."""
        return self._mapping((), base or Mapping((), over.span), over)

    def _mapping(self, path: Path, base: Mapping, over: Mapping) -> Mapping:
        merged = {entry.name: entry for entry in base.entries}
        for entry in over.entries:
            if _is_null(entry.value):
                self._remove(path, base, merged, entry, [each.name for each in over.entries])
        given = {entry.name for entry in over.entries if not _is_null(entry.value)}
        for entry in over.entries:
            if _is_null(entry.value):
                continue
            self._displace(path, merged, entry, given)
            here = (*path, entry.name)
            there = merged.get(entry.name)
            if there is None:
                merged[entry.name] = Entry(entry.key, self._fresh(here, entry.value))
            elif not (isinstance(entry.value, Scalar) and entry.value.is_empty):  # an empty value was diagnosed before
                merged[entry.name] = Entry(entry.key, self._value(here, there.value, entry.value))
        return Mapping(tuple(merged.values()), over.span, len(merged) == 1 and (base.alone or over.alone))

    def _value(self, path: Path, base: Node, over: Node) -> Node:
        if isinstance(base, Scalar) and isinstance(over, Mapping):
            base = self.rules.opened(path, base, over) or base
        if isinstance(base, Mapping) and isinstance(over, Mapping):
            if self._another_type(path, base, over):
                kind = over.get("type")
                self.dropped.append(Dropped(path, base.span, over.span if kind is None else kind.span, "another type"))
            elif _is_another_form(base, over):
                self.dropped.append(Dropped(path, base.span, over.span, "alternative"))
            else:
                return self._mapping(path, base, over)
        else:
            if isinstance(base, Sequence) and isinstance(over, Mapping) and _only_positions(over):
                name = ".".join(str(part) for part in path)
                self.diagnostics.append(set_inside_list(over.entries[0].key.span, name, base.span))
                return base
            self.dropped.append(Dropped(path, base.span, over.span, "replaced"))
        return self._fresh(path, over)

    def _another_type(self, path: Path, base: Mapping, over: Mapping) -> bool:
        mine, theirs, default = over.get("type"), base.get("type"), self.rules.default_type(path)
        if mine is None:
            return False
        name = mine.text if isinstance(mine, Scalar) else None
        there = theirs.text if isinstance(theirs, Scalar) else default
        return name is not None and there is not None and name != there

    def _remove(
        self, path: Path, base: Mapping, merged: dict[str, Entry], entry: Entry, beside: SequenceABC[str]
    ) -> None:
        gone = merged.pop(entry.name, None)
        if gone is not None:
            self.dropped.append(Dropped((*path, entry.name), gone.value.span, entry.value.span, "removed"))
        elif _is_free(path):
            merged[entry.name] = entry
        else:
            self._say_nothing(path, entry, [each.name for each in base.entries], beside)

    def _say_nothing(
        self, path: Path, entry: Entry, known: SequenceABC[str] = (), beside: SequenceABC[str] = ()
    ) -> None:
        where = f"`{'.'.join(str(part) for part in path)}`" if path else "the recipe"
        self.diagnostics.append(null_removes_nothing(entry, where, known, beside))

    def _displace(self, path: Path, merged: dict[str, Entry], entry: Entry, given: set[str]) -> None:
        for name in sorted(self.rules.alternatives(path, entry.name) - given):
            gone = merged.pop(name, None)
            if gone is not None:
                self.dropped.append(Dropped((*path, name), gone.value.span, entry.key.span, "alternative"))

    def _fresh(self, path: Path, node: Node) -> Node:
        """A value that meets nothing of a base: a null inside it has nothing to remove."""
        return self._without_nulls(path, node) if any(map(_is_null, scalars(node, plain=False))) else node

    def _without_nulls(self, path: Path, node: Node) -> Node:
        if isinstance(node, Scalar) or _is_free(path):
            return node
        if isinstance(node, Sequence):
            items = tuple(self._without_nulls((*path, i), item) for i, item in enumerate(node.items))
            return node if all(a is b for a, b in zip(items, node.items, strict=True)) else Sequence(items, node.span)
        entries: list[Entry] = []
        for entry in node.entries:
            if _is_null(entry.value):
                self._say_nothing(path, entry)
            else:
                entries.append(Entry(entry.key, self._without_nulls((*path, entry.name), entry.value)))
        return node.with_entries(entries)


def _is_free(path: Path) -> bool:
    return any(_matches(free, path[: len(free)]) for free in _FREE)


def _is_null(node: Node) -> bool:
    """An explicit `null` or `~`; an empty value is none (and was diagnosed when it was read)."""
    return isinstance(node, Scalar) and node.value is None and not node.is_empty


def _only_positions(node: Mapping) -> bool:
    return bool(node.entries) and all(entry.name.isdigit() for entry in node.entries)


def orders_that_changed(base: Mapping, final: Mapping) -> dict[Path, tuple[str, ...]]:
    """The keys of each mapping of `base` that has other keys, or another order of them, in `final`."""
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


def fragment_of(node: Mapping, *names: str) -> Mapping:
    """`node` without the entries called `names`."""
    return node.without(names)


def whole(path: str) -> Span:
    """A span for what concerns a text as a whole."""
    return Span(path, 1, 1, 1, 1)
