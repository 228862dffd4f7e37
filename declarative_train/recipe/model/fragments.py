"""What can be said of the nodes in a part of a recipe, whose fields, blocks and other nodes may stand elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.components.component import Layer
from declarative_train.components.layers import LAYERS
from declarative_train.diagnostics.diagnostic import Diagnostic
from declarative_train.recipe.reading import read_component
from declarative_train.source.node import Mapping, Node, Scalar, Sequence, is_template

OF_EVERY_NODE = ("input", "inputs", "repeat", "when")


def check_nodes(model: Mapping) -> list[Diagnostic]:
    """The fields of every layer; wires and blocks are left to the recipe that takes the fragment."""
    found: list[Diagnostic] = []
    for node in _nodes(model):
        kind = node.get("type")
        if not isinstance(kind, Scalar) or kind.value not in LAYERS:
            continue
        own = tuple(entry for entry in node.entries if entry.name not in OF_EVERY_NODE and not _is_open(entry.value))
        found += read_component(Layer, Mapping(own, node.span), "node", node.span)[1]  # type: ignore[type-abstract]
    return found


def _nodes(model: Mapping) -> Iterator[Mapping]:
    blocks = model.get("blocks")
    holders = [model, *(entry.value for entry in blocks)] if isinstance(blocks, Mapping) else [model]
    for holder in holders:
        graph = holder.get("graph") if isinstance(holder, Mapping) else None
        for entry in graph if isinstance(graph, Mapping) else ():
            if isinstance(entry.value, Mapping):
                yield entry.value


def _is_open(node: Node) -> bool:
    """Holds a template, whose value is not known here."""
    if isinstance(node, Scalar):
        return isinstance(node.value, str) and is_template(node.value)
    if isinstance(node, Sequence):
        return any(_is_open(item) for item in node.items)
    return any(_is_open(entry.value) for entry in node)
