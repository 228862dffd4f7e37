"""Merging of adapters (LoRA) into the weights of their linear maps. The result is an equal model without adapters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from declarative_train.components.adapters import ADAPTERS
from declarative_train.components.adapters.adapted import KEY, split_name

if TYPE_CHECKING:
    import torch

    from declarative_train.components.adapters.adapter import Adapter
    from declarative_train.graph.graph import Graph, Node


def adapters_of(graph: Graph, prefix: str = "") -> dict[str, Adapter]:
    """Return {path of a linear map: its adapter}, in the order of the graph. `prefix`: path of the block whose graph it
    is, with a dot at the end, or ""."""
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


def make_merged_reader(
    graph: Graph, names: Iterable[str], read: Callable[[str], torch.Tensor]
) -> Callable[[str], torch.Tensor]:
    """Return a function from a tensor's name to the tensor of the model after its adapters are merged into its weights.

    `names`: names of all tensors of `graph`. `read`: function from a name to the tensor before merging. It is called
    for adapters now, for other tensors when they are requested. Weights are merged in float64 and returned in their own
    dtype.
    """
    adapters = adapters_of(graph)
    own: dict[str, dict[str, torch.Tensor]] = {}
    for name in names:
        path, word = split_name(name)
        if word is not None:
            own.setdefault(path, {})[word] = read(name).double()

    def read_merged(name: str) -> torch.Tensor:
        tensor = read(name)
        path, _, last = name.rpartition(".")
        if last != "weight" or path not in adapters:
            return tensor
        return adapters[path].merge(tensor.double(), own[path]).to(tensor.dtype)

    return read_merged
