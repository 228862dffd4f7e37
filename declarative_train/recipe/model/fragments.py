"""Checks of the nodes in a fragment, a file that is merged into other recipes. The other files may define fields,
blocks and nodes that it uses.
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.components.component import Layer
from declarative_train.components.layers import LAYERS
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.names import NODE_WORDS
from declarative_train.recipe.reading import read_component
from declarative_train.source.node import Mapping, Scalar, is_open


def check_nodes(model: Mapping) -> list[Diagnostic]:
    """Check the keys of every layer in `model`, the section of a fragment (a file that only other recipes use), and
    return diagnostics. References and blocks are only checked in the recipes that use the fragment."""
    found: list[Diagnostic] = []
    for node in _nodes(model):
        kind = node.get("type")
        if not isinstance(kind, Scalar) or kind.value not in LAYERS:
            continue
        own = tuple(entry for entry in node.entries if entry.name not in NODE_WORDS and not is_open(entry.value))
        found += read_component(Layer, node.with_entries(own), "node", node.span)[1]  # type: ignore[type-abstract]
    return found


def _nodes(model: Mapping) -> Iterator[Mapping]:
    blocks = model.get("blocks")
    holders = [model, *(entry.value for entry in blocks)] if isinstance(blocks, Mapping) else [model]
    for holder in holders:
        graph = holder.get("graph") if isinstance(holder, Mapping) else None
        for entry in graph if isinstance(graph, Mapping) else ():
            if isinstance(entry.value, Mapping):
                yield entry.value
