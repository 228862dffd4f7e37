"""A plan's model as TensorBoard's Graphs tab draws it: one entry per layer, under the recipe's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from declarative_train.graph.graph import Graph, Node
from declarative_train.logs.event import GraphNode

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan


def model_graph(plan: Plan) -> tuple[GraphNode, ...]:
    """Fields, nodes and losses; a block, and each copy of a `repeat`, is a scope that can be opened."""
    found: list[GraphNode] = []
    made = {field.name: f"fields/{field.name}" for field in plan.data.fields}
    found += [GraphNode(made[field.name], "field", (), (-1, *field.tensor.shape)) for field in plan.data.fields]
    made |= _walk(plan.batch_graph, "", made, found)
    made |= _walk(plan.graph, "", made, found)
    for term in plan.objective.terms:
        inputs = tuple(made[each] for each in (term.input, term.target, term.mask) if each is not None and each in made)
        found.append(GraphNode(f"loss/{term.name}", str(term.component["type"]), inputs, ()))
    return tuple(found)


def _walk(graph: Graph, prefix: str, sources: Mapping[str, str], found: list[GraphNode]) -> dict[str, str]:
    """Adds what is below `prefix`; the entry behind each output of the graph."""
    made = dict(sources)
    for node in graph.nodes:
        path = prefix + node.name.replace(".", "/")
        inputs = {port: made[edge] for port, edge in node.inputs.items()}
        if node.graph is not None:
            inside = _walk(node.graph, f"{path}/", inputs, found)
            made |= {f"{node.name}:{output}": inside[output] for output in node.outputs}
            continue
        shape = next((spec.shape for spec in node.outputs.values()), ())
        found.append(GraphNode(path, _operation(node), tuple(inputs.values()), (-1, *shape)))
        made |= {f"{node.name}:{output}": path for output in node.outputs}
    return {output: made[edge] for output, edge in graph.outputs.items()}


def _operation(node: Node) -> str:
    if node.component is not None:
        return str(node.component["type"])
    return node.expression or node.kind
