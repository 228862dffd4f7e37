"""The types that need not be said, written out once a recipe is merged and rendered."""

from __future__ import annotations

from collections.abc import Callable

from declarative_train.source.node import Entry, Mapping, Node, Path, Scalar

DEFAULTS: dict[Path, Callable[[Entry], str]] = {
    ("data", "fields"): lambda entry: "tensor",
    ("objective", "metrics"): lambda entry: entry.name,
}


def with_default_types(tree: Mapping) -> Mapping:
    """`type` for each field and metric that has none: not before merging, where it would look like a change
    of the base's type."""
    for path, default in DEFAULTS.items():
        tree = _changed(tree, path, default)
    return tree


def _changed(tree: Mapping, path: Path, default: Callable[[Entry], str]) -> Mapping:
    def change(node: Node, rest: Path) -> Node:
        if not isinstance(node, Mapping):
            return node
        if not rest:
            return Mapping(tuple(_typed(entry, default(entry)) for entry in node.entries), node.span)
        return Mapping(
            tuple(
                Entry(entry.key, change(entry.value, rest[1:])) if entry.name == rest[0] else entry
                for entry in node.entries
            ),
            node.span,
        )

    changed = change(tree, path)
    assert isinstance(changed, Mapping)
    return changed


def _typed(entry: Entry, name: str) -> Entry:
    if not isinstance(entry.value, Mapping) or entry.value.entry("type") is not None:
        return entry
    span = entry.key.span
    added = Entry(Scalar("type", "type", span), Scalar(name, name, span))
    return Entry(entry.key, Mapping((added, *entry.value.entries), entry.value.span))
