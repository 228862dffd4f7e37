"""The graph: a recipe's nodes with every wire resolved and every shape known, as data.

An edge is written `name` for an input of the same graph and `node:output` for a node's output. Node names are the
recipe's own; the copies of a `repeat` are nodes `layers.0`, `layers.1`, ... The way to a node through nested graphs,
joined by dots, is the prefix of its parameters (`gpt.layers.3.attn`). JSON-able: the plan carries it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from declarative_train.core.tensor_spec import TensorSpec

Edge = str


@dataclass(frozen=True, slots=True)
class Node:
    """Call of a layer, an expression or a block.

    layer       `component` holds its fields (with `type`); `inputs` maps bound ports to edges
    expression  `expression` is its text with names replaced by positions, see components/expressions;
                `inputs` maps each name in the text to an edge
    block       `graph` is the body, `inputs` maps its inputs; `block` is the block's type name, for display
    reuse       `target` is the node (in this graph) that is called again
    """

    name: str
    kind: Literal["layer", "expression", "block", "reuse"]
    inputs: dict[str, Edge]
    outputs: dict[str, TensorSpec]
    component: dict[str, object] | None = None
    expression: str | None = None
    block: str | None = None
    graph: Graph | None = None
    target: str | None = None


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in an order in which each follows all nodes that it reads."""

    inputs: dict[str, TensorSpec]
    nodes: tuple[Node, ...]
    outputs: dict[str, Edge] = field(default_factory=dict)

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def spec(self, edge: Edge) -> TensorSpec:
        """Return the spec of an edge of this graph."""
        name, _, output = edge.partition(":")
        return self.node(name).outputs[output] if output else self.inputs[name]

    def specs(self) -> dict[Edge, TensorSpec]:
        """Return the spec of every edge. (Calling `spec` for each would search the nodes each time.)"""
        made = {f"{node.name}:{name}": spec for node in self.nodes for name, spec in node.outputs.items()}
        return self.inputs | made


def above(paths: Iterable[str]) -> set[str]:
    """Return all containers of the paths: `gpt` and `gpt.layers` for `gpt.layers.0`."""
    found: set[str] = set()
    for path in paths:
        end = path.rfind(".")
        while end > 0 and path[:end] not in found:
            found.add(path[:end])
            end = path.rfind(".", 0, end)
    return found
