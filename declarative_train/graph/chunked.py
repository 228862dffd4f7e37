"""Losses with `chunks`: a graph in which the last linear layer and the loss are one node. This node receives the target
and computes scores and loss for one chunk of the items at a time, so that all scores are never in memory at once.

Ranks run this graph. The plan also keeps the original graph, for code that needs the scores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, ClassVar, Protocol

from declarative_train.components.adapters.adapted import KEY as ADAPTERS
from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.graph.graph import Edge, Graph, Node

if TYPE_CHECKING:
    from torch import nn

_TARGET, _MASK = "chunked_loss_target", "chunked_loss_mask"  # ports of the head, and of blocks around it


@dataclass(frozen=True, slots=True)
class HeadNode(Node):
    """Node that replaces a linear layer and computes the layer's scores together with the loss."""

    term: Mapping[str, object] | None = None
    ports: ClassVar[tuple[str, ...]] = ("x", _TARGET, _MASK)

    def build(self, linear: nn.Module, specs: Mapping[str, TensorSpec]) -> nn.Module:
        """Return a module that computes both the linear layer `linear` and the loss that reads its output. `specs`:
        specs of the node's inputs by port."""
        import torch

        from declarative_train.components.losses import LOSSES
        from declarative_train.components.losses.modules.chunked import ChunkedHead
        from declarative_train.components.losses.modules.classes import OverClasses

        assert self.term is not None
        assert isinstance(linear, torch.nn.Linear)
        target, mask = replace(specs[_TARGET], shape=()), specs.get(_MASK)
        with torch.device("cpu"):
            scores = TensorSpec((linear.out_features,))
            term = LOSSES.read(self.term).build(scores, target, None if mask is None else replace(mask, shape=()))
        assert isinstance(term, OverClasses)
        return ChunkedHead(linear, term, int(str(self.term["chunks"])))


class ChunkedTerm(Protocol):
    """Interface of a loss in a plan. `component`: type and settings of the loss. `input`, `target`, `mask`: names of
    the tensors that the loss reads."""

    @property
    def component(self) -> dict[str, object]: ...
    @property
    def input(self) -> str: ...
    @property
    def target(self) -> str | None: ...
    @property
    def mask(self) -> str | None: ...


class NoHeadError(Exception):
    """Error: a loss cannot be computed in chunks, because its scores are not the output of a linear layer that only
    this loss reads. The text of the error is the reason."""


def with_chunked_heads(graph: Graph, terms: Iterable[ChunkedTerm], batch: Mapping[str, TensorSpec]) -> Graph:
    """Return `graph` with a HeadNode in place of the linear layer before each loss with `chunks`. `terms`: all losses.
    `batch`: {name: spec} of the batch, with the targets and masks of these losses."""
    for term in terms:
        if term.component.get("chunks") is not None:
            assert term.target is not None
            inputs = {_TARGET: term.target} | ({} if term.mask is None else {_MASK: term.mask})
            more = {name: batch[name] for name in inputs.values()}
            edge = graph.outputs[term.input]
            graph = replace(graph, inputs=graph.inputs | more)
            graph = _with_head(graph, edge, inputs, more[term.target], term.component)
    return graph


def heads_of(graph: Graph, terms: Iterable[ChunkedTerm]) -> frozenset[str]:
    """Return the paths of the linear layers (heads) that compute the scores for losses with `chunks`. Raises
    NoHeadError if a HeadNode cannot replace one of them."""
    chunked = [term.input for term in terms if term.component.get("chunks") is not None]
    return frozenset(head_of(graph, graph.outputs[name]) for name in chunked)


def head_of(graph: Graph, edge: Edge) -> str:
    """Return the path of the linear layer whose output is `edge` (a value in the graph). Raises NoHeadError if no
    linear layer computes `edge`, or if a HeadNode cannot replace the layer, for example because other nodes read its
    output."""
    name, _, output = edge.partition(":")
    if not output:
        raise NoHeadError("its input is a field")
    node = graph.node(name)
    readers = [each.name for each in graph.nodes if edge in each.inputs.values()]
    if readers:
        raise NoHeadError(f"`{readers[0]}` also reads the scores, so they must all exist")
    if any(each.target == name for each in graph.nodes) or node.kind == "reuse":
        raise NoHeadError(f"`{node.target or name}` is used in several places")
    if node.kind == "block":
        assert node.graph is not None
        inner = node.graph.outputs[output]
        if list(node.graph.outputs.values()).count(inner) > 1:
            raise NoHeadError(f"`{name}` has several outputs")
        return f"{name}.{head_of(node.graph, inner)}"
    if node.component is None or node.component["type"] != "linear":
        what = "an expression" if node.component is None else f"a layer `{node.component['type']}`"
        raise NoHeadError(f"its scores come from {what}, `{name}`, not from a linear layer")
    if ADAPTERS in node.component:
        raise NoHeadError(f"`{name}` has an adapter")
    return name


def _with_head(
    graph: Graph, edge: Edge, inputs: Mapping[str, Edge], target: TensorSpec, term: Mapping[str, object]
) -> Graph:
    name, _, output = edge.partition(":")
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.name == name:
            items = TensorSpec(target.shape)
            outputs = node.outputs | {output: items}
            if node.graph is None:
                values = {each.name: getattr(node, each.name) for each in fields(Node)}
                values |= {"inputs": node.inputs | dict(inputs), "outputs": outputs}
                nodes.append(HeadNode(**values, term=term))
                continue
            more = {port: graph.spec(source) for port, source in inputs.items()}
            body = replace(node.graph, inputs=node.graph.inputs | more)
            body = _with_head(body, node.graph.outputs[output], {port: port for port in inputs}, target, term)
            node = replace(node, inputs=node.inputs | dict(inputs), outputs=outputs, graph=body)
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes))
