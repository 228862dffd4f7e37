"""Split a model into what is computed from fields alone and the rest.

The first part has no parameters and does not mix samples: every rank, and every pipeline stage, computes it on its own
rows, without gradients, and its results join the fields in the batch. So labels and masks are known before the first
backward, drawn ones too, and never travel between stages: what an expression draws here follows from the sample
(`field_draws.py`). Layers that draw, such as dropout, rest in evaluation and stay in the model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from declarative_train.graph.graph import Edge, Graph, Node, above
from declarative_train.graph.stage_graphs import wire_name


def split_batch_graph(graph: Graph, bound_to_model: Collection[str]) -> tuple[Graph, Graph]:
    """The batch graph and the model graph. `graph.outputs` are all edges that the objective reads, fields included;
    `bound_to_model` are the paths of parameters, and of layers that draw or mix samples."""
    moved = _moved(graph, bound_to_model)
    moved_names = {node.name for node in moved}
    names = {
        f"{node.name}:{output}": wire_name(graph, f"{node.name}:{output}") for node in moved for output in node.outputs
    }
    kept = tuple(
        replace(node, inputs={port: names.get(edge, edge) for port, edge in node.inputs.items()})
        for node in graph.nodes
        if node.name not in moved_names
    )
    wanted = {name: names.get(edge, edge) for name, edge in graph.outputs.items()}
    outputs = {name: edge for name, edge in wanted.items() if ":" in edge}
    read = _read(kept)
    batch_outputs = {name: edge for edge, name in names.items() if name in read or name in wanted.values()}
    batch_graph = _with_inputs(graph, moved, batch_outputs, {})
    return batch_graph, _with_inputs(graph, kept, outputs, {name: edge for edge, name in names.items()})


def _moved(graph: Graph, bound_to_model: Collection[str]) -> tuple[Node, ...]:
    bound = {*bound_to_model, *above(bound_to_model)}
    called_twice = {node.target for node in graph.nodes if node.kind == "reuse"}
    from_fields: set[Edge] = set(graph.inputs)
    moved = []
    for node in graph.nodes:
        is_bound = node.name in bound
        is_free = bool(node.inputs) and from_fields.issuperset(node.inputs.values())
        if is_free and not is_bound and node.kind != "reuse" and node.name not in called_twice:
            moved.append(node)
            from_fields |= {f"{node.name}:{output}" for output in node.outputs}
    return tuple(moved)


def _read(nodes: Iterable[Node]) -> set[Edge]:
    return {edge for node in nodes for edge in node.inputs.values()}


def _with_inputs(graph: Graph, nodes: tuple[Node, ...], outputs: Mapping[str, Edge], made: Mapping[str, Edge]) -> Graph:
    """A graph of some of the nodes, its inputs the fields and entries of the batch (`made`) that these read."""
    read = _read(nodes) | set(outputs.values())
    inputs = {name: spec for name, spec in graph.inputs.items() if name in read}
    inputs |= {name: graph.spec(edge) for name, edge in made.items() if name in read}
    return Graph(inputs, nodes, dict(outputs))
