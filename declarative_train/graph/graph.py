"""Graph: the nodes of a recipe with all inputs connected and all shapes known, as data that a plan stores as JSON.

edge        name of a value: `name` for an input of the graph, `node:output` for an output of a node
path        names of the blocks around a node and its own: `gpt.layers.3.attn` (copy 3 of a `repeat`)
parameter   its name begins with the path of its node
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from declarative_train.core.tensor_spec import TensorSpec

Edge = str


@dataclass(frozen=True, slots=True)
class Node:
    """Call of a layer, an expression or a block. Which attributes are set depends on `kind`:

    layer       `component`: keys of the layer, with `type`; `inputs`: port -> edge; `model_parts`: graph that pipeline
                stages run in place of a library's model
    expression  `expression`: its text; `inputs`: name in the text -> edge
    block       `graph`: the graph in it; `inputs`: input of this graph -> edge; `block`: the block's type name
    reuse       `target`: name of the node in the same graph whose module is called again
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
    model_parts: Graph | None = None


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes of a model or block. A node comes after all nodes whose outputs it reads. `inputs`: spec of each input, by
    name. `outputs`: the edge that gives each output, by name."""

    inputs: dict[str, TensorSpec]
    nodes: tuple[Node, ...]
    outputs: dict[str, Edge] = field(default_factory=dict)

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def spec(self, edge: Edge) -> TensorSpec:
        """Return the spec (shape, dtype and range) of an edge of this graph."""
        name, _, output = edge.partition(":")
        return self.node(name).outputs[output] if output else self.inputs[name]

    def specs(self) -> dict[Edge, TensorSpec]:
        """Return the spec of every edge. (This is faster than calling `spec` for each edge, which searches all
        nodes.)"""
        made = {f"{node.name}:{name}": spec for node in self.nodes for name, spec in node.outputs.items()}
        return self.inputs | made


def above(paths: Iterable[str]) -> set[str]:
    """Return the paths of all blocks and layers that contain one of `paths`, which are paths of nodes or parameters.
    For `gpt.layers.0`, these are `gpt` and `gpt.layers`."""
    found: set[str] = set()
    for path in paths:
        end = path.rfind(".")
        while end > 0 and path[:end] not in found:
            found.add(path[:end])
            end = path.rfind(".", 0, end)
    return found
