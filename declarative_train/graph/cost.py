"""What a node costs, estimated from shapes: for balanced cuts and for the sizes that a plan shows.

An estimate, and the same on every machine: a parameter of two or more dimensions is counted as multiplied once with
each position that its layer looks at (tokens, pixels); attention adds its scores; a look-up in an embedding is free.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from declarative_train.graph.graph import Graph, Node
from declarative_train.terms.tensor_spec import TensorSpec

_ATTENTION = frozenset({"self_attention", "cross_attention"})
Shapes = Mapping[str, tuple[int, ...]]


def num_parameters(path: str, parameters: Shapes) -> int:
    """Elements of all parameters at and below a path."""
    return sum(prod(shape) for name, shape in parameters.items() if name.startswith(f"{path}."))


def forward_flops(node: Node, graph: Graph, path: str, parameters: Shapes) -> int:
    """Floating-point operations of one sample's forward. `path` is the node's way from the root."""
    if node.graph is not None:
        body = node.graph
        return sum(forward_flops(inner, body, f"{path}.{inner.name}", parameters) for inner in body.nodes)
    if node.kind != "layer" or node.component is None:
        return 0
    first = next((graph.spec(edge) for edge in node.inputs.values()), None)
    output = next(iter(node.outputs.values()))
    if first is None or not first.is_floating:
        return 0
    shapes = [shape for name, shape in parameters.items() if name.startswith(f"{path}.") and len(shape) > 1]
    flops = sum(2 * prod(shape) * _positions(shape, first, output) for shape in shapes)
    return flops + (_score_flops(node, graph, output) if node.component["type"] in _ATTENTION else 0)


def activations(node: Node) -> int:
    """Elements per sample of everything that a node and the nodes inside of it give."""
    inside = sum(activations(inner) for inner in node.graph.nodes) if node.graph is not None else 0
    return inside or sum(spec.num_elements for spec in node.outputs.values())


def _positions(shape: tuple[int, ...], first: TensorSpec, output: TensorSpec) -> int:
    """How often a weight is used: per row of a matrix product, per place of a convolution's result."""
    if len(shape) == 2:
        return max(1, first.num_elements // first.shape[-1]) if first.shape else 1
    return max(1, output.num_elements // shape[0])


def _score_flops(node: Node, graph: Graph, output: TensorSpec) -> int:
    """Two products of (T, D) with (S, D): queries with keys, weights with values."""
    context = next((graph.spec(edge) for port, edge in node.inputs.items() if port == "context"), output)
    return 4 * output.num_elements * context.shape[0]
