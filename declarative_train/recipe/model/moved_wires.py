"""Warnings for nodes whose default input changed. A node without `input` reads the node above it, which a derived
recipe can change by adding or removing a node.

The merged recipe is valid (docs/decisions.md, Q3), but probably not what the user means. Each warning names the node
that was read in the base recipe and the one that is read now.
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.span import Span
from declarative_train.recipe.checks.wiring import moved_default_wire
from declarative_train.source.document import Document
from declarative_train.source.node import Entry, Mapping, Path


def find_moved_wires(document: Document) -> Iterator[Diagnostic]:
    for path, order in document.base_orders.items():
        graph = document.find(path)
        if path[:1] != ("model",) or path[-1] != "graph" or not isinstance(graph, Mapping):
            continue
        for above, entry in zip(graph.entries, graph.entries[1:], strict=False):
            if entry.name not in order or not _reads_above(entry):
                continue
            before = _above(order, entry.name)
            if before is not None and before != above.name:
                at = _place(document, (*path, before))
                yield moved_default_wire(entry.key.span, entry.name, before, at, above.name, above.key.span)


def _reads_above(entry: Entry) -> bool:
    return isinstance(entry.value, Mapping) and entry.value.get("input") is None and entry.value.get("inputs") is None


def _above(order: tuple[str, ...], name: str) -> str | None:
    position = order.index(name)
    return order[position - 1] if position else None


def _place(document: Document, path: Path) -> Span:
    """Return the span of the name of the node at `path`. If a later file removed the node, return the span of the entry
    that it removed; if no file has the node, return that of the whole recipe."""
    holder = document.find(path[:-1])
    entry = holder.entry(str(path[-1])) if isinstance(holder, Mapping) else None
    if entry is not None:
        return entry.key.span
    gone = next((dropped for dropped in document.dropped if dropped.path == path), None)
    return document.root.span if gone is None else gone.span
