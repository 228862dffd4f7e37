"""Graph that computes selected outputs of a plan from the fields.

A plan has two graphs: one for the values that are computed from fields alone, and the model. This module joins them,
and removes the nodes on which no requested output depends. The result reads a target only if a requested output depends
on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from declarative_train.graph.graph import Edge, Graph, Node
from declarative_train.graph.partition import open_blocks, wire_name

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan


class UnknownOutputError(Exception):
    """Error: a requested output is not in the model. `known`: names of the outputs that exist."""

    def __init__(self, name: str, known: Sequence[str], reason: str = "") -> None:
        self.name, self.known, self.reason = name, tuple(known), reason
        super().__init__(reason or f"the model has no node `{name}`")


def whole_graph(plan: Plan) -> Graph:
    """Return one graph from the fields to all values that losses and metrics read. Names are the same as in the
    plan."""
    batch_graph, graph = plan.batch_graph, plan.graph
    made = dict(batch_graph.outputs)
    nodes = (*batch_graph.nodes, *(replace(node, inputs=_through(node.inputs, made)) for node in graph.nodes))
    inputs = {field.name: field.tensor for field in plan.data.fields}  # targets that no node reads are among them
    return Graph(inputs, nodes, dict(batch_graph.outputs) | _through(graph.outputs, made))


def _through(edges: Mapping[str, Edge], made: Mapping[str, Edge]) -> dict[str, Edge]:
    return {name: made.get(edge, edge) for name, edge in edges.items()}


def prune(plan: Plan, outputs: Sequence[str]) -> Graph:
    """Return the graph that computes only `outputs`, in this order. Raises UnknownOutputError.

    An output is a value that losses or metrics read, a node such as `encoder`, a further output of a node such as
    `lstm.hidden`, or a node in a block such as `gpt.layers.0.attn`.
    """
    graph = whole_graph(plan)
    edges: dict[str, Edge] = {}
    for name in outputs:
        found = _edge(graph, name)
        if found is None:
            graph = open_blocks(replace(graph, outputs=graph.outputs | edges), [name])
            edges = {each: graph.outputs[each] for each in edges}
            found = _edge(graph, name)
        if found is None:
            raise UnknownOutputError(name, nodes_of(plan), _why_not(graph, name))
        edges[name] = found
    needed = _find_needed(graph, edges.values())
    nodes = tuple(node for node in graph.nodes if node.name in needed)
    read = {edge for node in nodes for edge in node.inputs.values()} | set(edges.values())
    return Graph({name: spec for name, spec in graph.inputs.items() if name in read}, nodes, edges)


def _edge(graph: Graph, name: str) -> Edge | None:
    if name in graph.outputs:
        return graph.outputs[name]
    if name in graph.inputs:
        return name
    nodes = {node.name: node for node in graph.nodes}
    if name in nodes:
        return f"{name}:{next(iter(nodes[name].outputs))}"
    owner, _, output = name.rpartition(".")
    return f"{owner}:{output}" if owner in nodes and output in nodes[owner].outputs else None


def _why_not(graph: Graph, name: str) -> str:
    called_again = {node.target for node in graph.nodes if node.kind == "reuse"}
    inside = next((each for each in called_again if each is not None and name.startswith(f"{each}.")), None)
    return f"`{name}` is inside `{inside}`, which is called more than once" if inside else ""


def _find_needed(graph: Graph, edges: Iterable[Edge]) -> set[str]:
    """Return the names of the nodes on which `edges` depend. If one of these nodes calls another node again (`reuse`),
    the called node is included."""
    nodes = {node.name: node for node in graph.nodes}
    found: set[str] = set()
    waiting = [edge.partition(":")[0] for edge in edges if ":" in edge]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        node = nodes[name]
        waiting += [edge.partition(":")[0] for edge in node.inputs.values() if ":" in edge]
        if node.target is not None:
            waiting.append(node.target)
    return found


def nodes_of(plan: Plan) -> list[str]:
    """Return the names that `prune` accepts as outputs: the outputs of all nodes in the order of the graph, then the
    nodes inside blocks."""
    graph = whole_graph(plan)
    outer = [wire_name(graph, f"{node.name}:{output}") for node in graph.nodes for output in node.outputs]
    return [*outer, *(inner for node in graph.nodes for inner in _inside(node))]


def _inside(node: Node) -> list[str]:
    if node.graph is None:
        return []
    names = [f"{node.name}.{inner.name}" for inner in node.graph.nodes]
    return [*names, *(f"{node.name}.{deeper}" for inner in node.graph.nodes for deeper in _inside(inner))]
