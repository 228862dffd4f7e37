"""Two divisions of a graph: into the nodes that depend on fields alone and the rest, which is the model; and of the
model into pipeline stages."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.graph.graph import Edge, Graph, Node, above


def split_batch_graph(graph: Graph, bound_to_model: Collection[str]) -> tuple[Graph, Graph]:
    """Return (batch graph, model graph): the nodes that are computed from fields alone, and all other nodes.
    `graph.outputs` must be all values that losses and metrics read, fields included.

    `bound_to_model`: names of parameters, and paths of layers that draw random numbers or mix samples. The nodes that
    contain one of these are in the model graph."""
    moved = _find_moved(graph, bound_to_model)
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


def _find_moved(graph: Graph, bound_to_model: Collection[str]) -> tuple[Node, ...]:
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
    """Return a graph of the `nodes` with these `outputs`. Its inputs are the fields that it reads, and the values in
    `made` that it reads. `made`: {name: edge of `graph`} for values that another graph computes from the fields."""
    read = _read(nodes) | set(outputs.values())
    inputs = {name: spec for name, spec in graph.inputs.items() if name in read}
    inputs |= {name: graph.spec(edge) for name, edge in made.items() if name in read}
    return Graph(inputs, nodes, dict(outputs))


@dataclass(frozen=True, slots=True)
class Stage:
    """Graph of one pipeline stage.

    graph      inputs: `wires_in`, then `batch`; outputs: `wires_out`, or in the last stage those of the model
    wires_in   values from the previous stage, with the names that they have in its `wires_out`
    batch      entries of the batch that the stage reads
    wires_out  values for the next stage; () in the last stage
    borrowed   nodes of other stages that this stage calls too, with the specs of their inputs by port
    """

    graph: Graph
    wires_in: tuple[str, ...]
    batch: tuple[str, ...]
    wires_out: tuple[str, ...]
    borrowed: tuple[tuple[Node, dict[str, TensorSpec]], ...] = ()


def wire_name(graph: Graph, edge: Edge) -> str:
    """Return the name of an edge as a recipe writes it: `lstm` for the first output of a node, `lstm.hidden` for
    another."""
    name, _, output = edge.partition(":")
    if not output or output == next(iter(graph.node(name).outputs)):
        return name
    return f"{name}.{output}"


def open_blocks(graph: Graph, units: Sequence[str]) -> Graph:
    """Return a copy of the graph in which none of the nodes `units` (paths) is inside a block: a block that contains
    one is replaced by its nodes. A library's model is replaced by its parts, if they are known. A block or model that
    another node calls again (`reuse`) is not replaced."""
    nodes: list[Node] = []
    moved: dict[Edge, Edge] = {}
    reused = {node.target for node in graph.nodes if node.kind == "reuse"}
    holders = above(units)
    for node in graph.nodes:
        inputs = {port: moved.get(edge, edge) for port, edge in node.inputs.items()}
        inner_graph = node.model_parts or (node.graph if node.name in holders else None)
        if inner_graph is None or node.name in reused:
            nodes.append(replace(node, inputs=inputs))
            continue
        below = tuple(unit[len(node.name) + 1 :] for unit in units if unit.startswith(f"{node.name}."))
        body = open_blocks(inner_graph, below)
        outside = _map_to_outside(node.name, body, inputs)
        nodes += [_rename_inner(inner, node.name, outside) for inner in body.nodes]
        moved |= {f"{node.name}:{output}": outside[edge] for output, edge in body.outputs.items()}
    return Graph(graph.inputs, tuple(nodes), {name: moved.get(edge, edge) for name, edge in graph.outputs.items()})


def _map_to_outside(name: str, body: Graph, inputs: Mapping[str, Edge]) -> dict[Edge, Edge]:
    """Return the names that edges get when the block `name` is replaced by its nodes: {edge of the block's graph
    `body`: edge of the outer graph}. `inputs`: {input of the block: edge that is connected to it}; an input that is not
    connected has no entry."""
    made = {f"{node.name}:{output}": f"{name}.{node.name}:{output}" for node in body.nodes for output in node.outputs}
    return dict(inputs) | made


def _rename_inner(inner: Node, name: str, outside: Mapping[Edge, Edge]) -> Node:
    """Return `inner`, a node of the block `name`, as a node outside of the block, with its new name and inputs.
    `outside`: {edge inside the block: edge that replaces it}, from `_map_to_outside`."""
    return replace(
        inner,
        name=f"{name}.{inner.name}",
        inputs={port: outside[edge] for port, edge in inner.inputs.items() if edge in outside},
        target=f"{name}.{inner.target}" if inner.target is not None else None,
    )


def stage_graphs(graph: Graph, stages: Sequence[Sequence[str]]) -> tuple[Stage, ...]:
    """Divide a graph into pipeline stages. `graph`: a graph in which `open_blocks` has replaced blocks by their nodes.
    `stages`: the names of the nodes of each stage."""
    place = {name: position for position, names in enumerate(stages) for name in names}
    last = len(stages) - 1
    until = _find_last_stages(graph, place, last)
    result = []
    for position, names in enumerate(stages):
        wires_in = _find_sent(graph, place, until, position - 1)
        wires_out = _find_sent(graph, place, until, position) if position < last else ()
        result.append(_stage(graph, names, wires_in, wires_out, is_last=position == last))
    return tuple(result)


def _find_last_stages(graph: Graph, place: Mapping[str, int], last: int) -> dict[Edge, int]:
    """Return {output of a node: index of the last stage that reads it}. Outputs of the graph count as read by stage
    `last`. `place`: {node: index of its stage}."""
    until: dict[Edge, int] = {}
    for node in graph.nodes:
        for edge in node.inputs.values():
            if ":" in edge:
                until[edge] = max(until.get(edge, 0), place[node.name])
    return until | {edge: last for edge in graph.outputs.values() if ":" in edge}


def _find_sent(graph: Graph, place: Mapping[str, int], until: Mapping[Edge, int], position: int) -> tuple[Edge, ...]:
    """Return the edges that the stage with index `position` sends to the next stage, in the order of the nodes that
    compute them. `place`: {node: index of its stage}. `until`: {edge: index of the last stage that reads it}."""
    edges = [f"{node.name}:{output}" for node in graph.nodes for output in node.outputs]
    return tuple(edge for edge in edges if place[edge.partition(":")[0]] <= position < until.get(edge, -1))


def _stage(
    graph: Graph, names: Sequence[str], wires_in: Sequence[Edge], wires_out: Sequence[Edge], *, is_last: bool
) -> Stage:
    arrived = {edge: wire_name(graph, edge) for edge in wires_in}
    nodes = tuple(
        replace(node, inputs={port: arrived.get(edge, edge) for port, edge in node.inputs.items()})
        for node in map(graph.node, names)
    )
    wanted = graph.outputs if is_last else {wire_name(graph, edge): edge for edge in wires_out}
    outputs = {name: arrived.get(edge, edge) for name, edge in wanted.items()}
    read = {edge for node in nodes for edge in node.inputs.values()} | set(outputs.values())
    batch = tuple(name for name in graph.inputs if name in read)
    inputs: dict[str, TensorSpec] = {name: graph.spec(edge) for edge, name in arrived.items()}
    inputs |= {name: graph.inputs[name] for name in batch}
    called = dict.fromkeys(node.target for node in nodes if node.target is not None and node.target not in names)
    borrowed = tuple(
        (node, {port: graph.spec(edge) for port, edge in node.inputs.items()}) for node in map(graph.node, called)
    )
    sent = () if is_last else tuple(wanted)
    return Stage(Graph(inputs, nodes, outputs), tuple(arrived.values()), batch, sent, borrowed)
