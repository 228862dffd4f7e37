"""Reading of the components and expressions in the nodes of a graph."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from declarative_train.components.adapters.adapted import KEY, Adapted
from declarative_train.components.component import Layer
from declarative_train.components.expressions.grammar import parse
from declarative_train.components.expressions.tree import Term, call_of
from declarative_train.components.layers import LAYERS
from declarative_train.components.plugins import plugin_layers
from declarative_train.graph.graph import Node

PART = "part_of_model"
"""Key in a node's component: the path of the part of a library's model that the node computes."""


def read_layer(component: Mapping[str, object], plugins: Sequence[str] = ()) -> Layer:
    """Return the layer of a node. `component`: the node's component, as data. `plugins`: paths of plugin files. The
    text of these files is parsed; their code runs only when the layer is built. Raises LookupError for a type that
    neither dtrain nor a plugin has, and the errors of reading a plugin file."""
    return _read(json.dumps(component, sort_keys=True), tuple(plugins))


@lru_cache(maxsize=4096)
def _read(component: str, plugins: tuple[str, ...]) -> Layer:
    data = json.loads(component)
    adapters, part = data.pop(KEY, None), data.pop(PART, None)
    layer = _layer_class(data["type"], plugins).from_data(data)
    if part is not None:
        return layer.take_part(part)
    return layer if adapters is None else Adapted.read(layer, adapters)


def is_library(component: Mapping[str, object] | None) -> bool:
    """Return whether a node's component is a whole model of a library (transformers, timm)."""
    layer = None if component is None else LAYERS.get(str(component["type"]))
    return layer is not None and layer.is_library


def _layer_class(name: str, plugins: tuple[str, ...]) -> type[Layer]:
    if name in LAYERS:
        return LAYERS[name]
    for file in plugins:
        found = plugin_layers(file).get(name)
        if found is not None:
            return found
    raise LookupError(f"neither dtrain nor the plugins {list(plugins)} have a layer `{name}`")


def term_of(node: Node) -> Term | None:
    """Return the expression that computes a node from its `inputs`. Return None for a layer that has no equivalent
    expression."""
    if node.expression is not None:
        return parse(node.expression).root
    layer = None if node.component is None else LAYERS.get(str(node.component["type"]))
    return call_of(layer.operation, node.inputs) if layer is not None and layer.operation else None


def order_ports(layer: Layer, bound: Iterable[str]) -> list[str | None]:
    """Return the name of the input for each argument of the layer's `forward`, in the order of the arguments; None for
    an input that is not connected. `bound`: names of the connected inputs."""
    names = set(bound)
    ordered: list[str | None] = []
    for port in layer.ports:
        if port.variadic:
            count = sum(name.startswith(f"{port.name}.") for name in names)
            ordered += [f"{port.name}.{position}" for position in range(count)]
        else:
            ordered.append(port.name if port.name in names else None)
    return ordered
