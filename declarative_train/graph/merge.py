"""A model with adapters -> the same model without: each adapter is added to the weight beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from declarative_train.components.adapters import ADAPTERS
from declarative_train.components.adapters.adapted import KEY, is_added, split_name

if TYPE_CHECKING:
    import torch

    from declarative_train.components.component import Adapter
    from declarative_train.graph.graph import Graph, Node


def adapters_of(graph: Graph, prefix: str = "") -> dict[str, Adapter]:
    """By the path of the linear map that each belongs to, in the order of the graph."""
    return dict(_adapters(graph, prefix))


def _adapters(graph: Graph, prefix: str) -> Iterator[tuple[str, Adapter]]:
    for node in graph.nodes:
        path = f"{prefix}{node.name}"
        if node.graph is not None:
            yield from _adapters(node.graph, f"{path}.")
        data = (node.component or {}).get(KEY)
        if isinstance(data, Mapping):
            for inner, each in data.items():
                yield f"{path}.{inner}" if inner else path, ADAPTERS.read(each)


def without_adapters(graph: Graph) -> Graph:
    def bare(node: Node) -> Node:
        if node.graph is not None:
            return replace(node, graph=without_adapters(node.graph))
        component = node.component and {key: value for key, value in node.component.items() if key != KEY}
        return replace(node, component=component)

    return replace(graph, nodes=tuple(map(bare, graph.nodes)))


def merged_tensors(graph: Graph, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of `without_adapters(graph)`; they are computed in float64 and given in their own dtype."""
    found = {name: tensor for name, tensor in tensors.items() if not is_added(name)}
    own: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        path, word = split_name(name)
        if word is not None:
            own.setdefault(path, {})[word] = tensor.double()
    for path, adapter in adapters_of(graph).items():
        weight = found[f"{path}.weight"]
        found[f"{path}.weight"] = adapter.merged(weight.double(), own[path]).to(weight.dtype)
    return found
