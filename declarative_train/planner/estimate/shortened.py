"""Smaller plans for traces, with fewer copies of repeated blocks and fewer ranks along an axis. Memory grows linearly
with the number of copies and with the size of a rank's shards, so the memory of the whole plan can be extrapolated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from declarative_train.core.mesh import MeshAxis
from declarative_train.graph.graph import Edge, Graph, Node
from declarative_train.graph.read import is_library, read_layer
from declarative_train.plan.layout import LayoutPlan, RankPlan
from declarative_train.plan.plan import ParameterPlan, Plan

MOST_RANKS = 8  # that shard parameters


@dataclass(frozen=True, slots=True)
class CopyChain:
    """Chain of equal blocks, each of which reads the previous one. `paths`: their paths in the model, in the order of
    the chain. `node`: path of the library's model that contains the blocks; "" if they are the copies of a `repeat`."""

    paths: tuple[str, ...]
    node: str = ""


def find_chains(plan: Plan, least: int) -> list[CopyChain]:
    """Return the chains of at least `least` equal blocks, each of which reads the previous one. The blocks of a chain
    are in one pipeline stage, and their parameters have equal settings."""
    settings = _settings(plan.parameters)
    found = []
    for run in _chains(plan.graph, ""):
        alike: list[str] = []
        for path in (*run, None):
            if alike and (path is None or not _are_equal(alike[-1], path, plan, settings)):
                if len(alike) >= least and not _has_ties(alike, plan.parameters):
                    found.append(CopyChain(tuple(alike)))
                alike = []
            if path is not None:
                alike.append(path)
    return [*found, *_chains_inside(plan, plan.graph, "", least, settings)]


def _chains_inside(
    plan: Plan, graph: Graph, prefix: str, least: int, settings: Mapping[str, list[tuple[Any, ...]]]
) -> Iterator[CopyChain]:
    """Yield a chain for each library model in `graph` that has at least `least` blocks, all equal, and that the library
    can also build with fewer blocks. `prefix`: path of the graph with a dot at the end, or "". `settings`: {path of a
    module: shapes and settings of its parameters}."""
    for node in graph.nodes:
        path = f"{prefix}{node.name}"
        if node.graph is not None:
            yield from _chains_inside(plan, node.graph, f"{path}.", least, settings)
        if plan.layout.pipeline is not None or not is_library(node.component):
            continue
        units = [unit for unit in plan.layout.units if unit.startswith(f"{path}.")]
        stem = units[0].rpartition(".")[0] if units else ""
        if len(units) < least or units != [f"{stem}.{number}" for number in range(len(units))]:
            continue
        if _has_ties(units, plan.parameters) or any(not _are_equal(units[0], each, plan, settings) for each in units):
            continue
        if _shorten_layer(node, len(units), least) is not None:
            yield CopyChain(tuple(units), path)


def _shorten_layer(node: Node, copies: int, kept: int) -> dict[str, object] | None:
    """Return the component of a library model with only `kept` of its `copies` equal parts, or None if the library
    cannot build such a model."""
    assert node.component is not None
    model: Any = read_layer(node.component)  # a library model, of a pack
    layer = model.shorten(copies, kept)
    return None if layer is None else layer.as_data()


def shorten(plan: Plan, runs: Sequence[CopyChain], kept: Sequence[int]) -> Plan:
    """Return the plan with shorter chains of equal nodes: of chain `runs[i]`, only the first `kept[i]` nodes remain.
    Nodes that read the last node of a chain now read its last remaining one."""
    moved: dict[str, str] = {}  # removed path -> the path that replaces it
    for run, number in zip(runs, kept, strict=True):
        moved |= dict.fromkeys(run.paths[number:], run.paths[number - 1])
    if not moved:
        return plan
    inside = {run.node: (len(run.paths), number) for run, number in zip(runs, kept, strict=True) if run.node}
    layout = replace(plan.layout, units=tuple(unit for unit in plan.layout.units if not _below(unit, moved)))
    if layout.pipeline is not None:
        stages = tuple(tuple(name for name in stage if name not in moved) for stage in layout.pipeline.stages)
        layout = replace(layout, pipeline=replace(layout.pipeline, stages=stages))
    return replace(
        plan,
        graph=_without(plan.graph, moved, inside, ""),
        parameters=tuple(item for item in plan.parameters if not _below(item.name, moved)),
        layout=layout,
    )


def fewer_ranks(plan: Plan) -> Plan:
    """Return the plan with fewer ranks, because a trace of very many ranks would take too long. The axis `replicate` is
    reduced to 2, because further copies of the model need the same memory each. The axis `shard` is reduced to
    `MOST_RANKS` / (size of `expert`), but not below 2. Other axes are unchanged."""
    most = {"replicate": 2, "shard": max(2, MOST_RANKS // plan.layout.size("expert"))}
    mesh = tuple(MeshAxis(axis.name, min(axis.size, most.get(axis.name, axis.size))) for axis in plan.layout.mesh)
    number = prod(axis.size for axis in mesh)
    layout = replace(plan.layout, mesh=mesh, gpus_per_node=number, rank_devices=tuple(range(number)))
    return plan if mesh == plan.layout.mesh else replace(plan, layout=layout)


def kinds_of_rank(layout: LayoutPlan) -> dict[int, RankPlan]:
    """Return {pipeline position: the first rank at it}. All ranks at a position need the same memory, so it is computed
    for one of them."""
    found: dict[int, RankPlan] = {}
    for rank in layout.ranks:
        found.setdefault(rank.coordinates.get("pipeline", 0), rank)
    return dict(sorted(found.items()))


def _chains(graph: Graph, prefix: str) -> Iterator[tuple[str, ...]]:
    chain: list[Node] = []
    used = _readers(graph)
    for node in (*graph.nodes, None):
        if chain and (node is None or not _follows(chain, node, used)):
            if len(chain) > 1:
                yield tuple(f"{prefix}{each.name}" for each in chain)
            elif chain[0].graph is not None:
                yield from _chains(chain[0].graph, f"{prefix}{chain[0].name}.")
            chain = []
        if node is not None:
            chain.append(node)


def _readers(graph: Graph) -> dict[str, list[str]]:
    """Return {name of a node: names of the nodes that read it}. The name "" stands for any other use: an output of the
    graph, or a `reuse` node that calls the node again."""
    found: dict[str, list[str]] = {}
    for node in graph.nodes:
        for edge in node.inputs.values():
            found.setdefault(edge.partition(":")[0], []).append(node.name)
        if node.target is not None:
            found.setdefault(node.target, []).append("")
    for edge in graph.outputs.values():
        found.setdefault(edge.partition(":")[0], []).append("")
    return found


def _follows(chain: Sequence[Node], node: Node, used: Mapping[str, list[str]]) -> bool:
    """Return whether `node` continues `chain`, a list of equal nodes such as `block.0`, `block.1`. It must have the
    next number and the same settings as the last node. It must be the only reader of the last node, and have the same
    other inputs. `used`: {node name: names of the nodes that read it}."""
    last = chain[-1]
    stem, _, number = last.name.rpartition(".")
    if not stem or not number.isdigit() or node.name != f"{stem}.{int(number) + 1}":
        return False
    if (
        set(used.get(last.name, ())) != {node.name}
        or _bare(last) != _bare(node)
        or last.inputs.keys() != node.inputs.keys()
    ):
        return False
    taken = {port: edge for port, edge in node.inputs.items() if edge.partition(":")[0] == last.name}
    if any(last.inputs[port] != edge for port, edge in node.inputs.items() if port not in taken):
        return False
    if len(chain) == 1:
        return bool(taken)
    before = chain[-2].name
    return {port: edge.partition(":")[2] for port, edge in taken.items()} == {
        port: edge.partition(":")[2] for port, edge in last.inputs.items() if edge.partition(":")[0] == before
    }


def _bare(node: Node) -> Node:
    return replace(node, name="", inputs={})


def _settings(parameters: Sequence[ParameterPlan]) -> dict[str, list[tuple[Any, ...]]]:
    """Return {path of a module: shapes and settings of the parameters in it}. The names of the parameters are relative
    to the path, so that equal copies of a block have equal entries."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    for item in parameters:
        parts = item.name.split(".")
        fact = (item.shape, item.frozen, item.idle, str(item.optimizer), item.storage)
        for end in range(1, len(parts)):
            found.setdefault(".".join(parts[:end]), []).append((".".join(parts[end:]), *fact))
    return found


def _are_equal(last: str, path: str, plan: Plan, settings: Mapping[str, list[tuple[Any, ...]]]) -> bool:
    if settings.get(last) != settings.get(path):
        return False
    pipeline = plan.layout.pipeline
    return pipeline is None or any(last in stage and path in stage for stage in pipeline.stages)


def _has_ties(paths: Sequence[str], parameters: Sequence[ParameterPlan]) -> bool:
    return any(
        _below(name, dict.fromkeys(paths, ""))
        for item in parameters
        if item.tie is not None
        for name in (item.name, item.tie)
    )


def _below(path: str, tops: Mapping[str, str]) -> bool:
    parts = path.split(".")
    return any(".".join(parts[:end]) in tops for end in range(1, len(parts) + 1))


def _without(graph: Graph, moved: Mapping[str, str], inside: Mapping[str, tuple[int, int]], prefix: str) -> Graph:
    def redirect(edge: Edge) -> Edge:
        name, colon, output = edge.partition(":")
        path = f"{prefix}{name}"
        return f"{moved[path][len(prefix) :]}{colon}{output}" if path in moved else edge

    nodes = []
    for node in graph.nodes:
        path = f"{prefix}{node.name}"
        if path in moved:
            continue
        body = node.graph if node.graph is None else _without(node.graph, moved, inside, f"{path}.")
        if path in inside:
            node = replace(node, component=_shorten_layer(node, *inside[path]))
        nodes.append(replace(node, graph=body, inputs={port: redirect(edge) for port, edge in node.inputs.items()}))
    return Graph(graph.inputs, tuple(nodes), {name: redirect(edge) for name, edge in graph.outputs.items()})
