"""Search for the fields and nodes on which a value of the model depends: into blocks, out of blocks by their inputs,
and through `reuse` nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from declarative_train.components.expressions.functions import INDEX, VIEWS
from declarative_train.components.expressions.tree import Operation, Reference
from declarative_train.recipe.model.tree import (
    BlockNode,
    ExpressionNode,
    LayerNode,
    ModelNode,
    ReuseNode,
    Scope,
    Wire,
    term_of,
)

_PASSING = VIEWS | {"float"}


@dataclass(frozen=True)
class Frame:
    """Graph of the model, or of a block. `caller`: the node that calls the block; its inputs are those of the block.
    `outer`: the graph that contains this node. Both are None for the model."""

    scope: Scope
    caller: ModelNode | None = None
    outer: Frame | None = None

    @cached_property
    def path(self) -> str:
        """Names of the nodes by which the model's graph calls this graph, each after a dot, such as
        `.encoder.attention`; "" for the model's graph."""
        return "" if self.caller is None or self.outer is None else f"{self.outer.path}.{self.caller.name}"

    @cached_property
    def nodes(self) -> Mapping[str, ModelNode]:
        return {node.name: node for node in self.scope.nodes}


class Source(NamedTuple):
    """Origin of a value: a field, or an output of a layer or expression.

    `frame`: the graph that contains the field or node. `wire`: name of the value in this graph. `node`: None for a
    field. `inputs`: {input of the node: name of the value that it reads}; if a `reuse` node calls the layer, these are
    its inputs."""

    frame: Frame
    wire: Wire
    node: LayerNode | ExpressionNode | None
    inputs: Mapping[str, Wire]

    @property
    def output(self) -> str:
        return self.wire.partition(":")[2]


def find_source(frame: Frame, wire: Wire) -> Source:
    """Return the field, layer or expression that gives the value `wire` of the graph `frame`."""
    while True:
        name, colon, output = wire.partition(":")
        if colon:
            node = caller = frame.nodes[name]
            while isinstance(node, ReuseNode):
                node = frame.nodes[node.target]
            if not isinstance(node, BlockNode):
                return Source(frame, wire, node, caller.inputs)
            frame, wire = Frame(node.scope, caller, frame), node.scope.outputs[output]
        elif frame.caller is None or frame.outer is None:
            return Source(frame, wire, None, {})
        else:
            wire, frame = frame.caller.inputs[name], frame.outer


def _all_inputs(source: Source) -> Iterable[Wire]:
    return source.inputs.values()


def walk(
    frame: Frame, wires: Iterable[Wire], follow: Callable[[Source], Iterable[Wire]] = _all_inputs
) -> Iterator[Source]:
    """Yield each field, layer and expression on which the values `wires` of the graph `frame` depend.

    `follow`: function that returns the inputs of a node that are followed; as default, all of them."""
    waiting = [find_source(frame, wire) for wire in wires]
    seen = set[tuple[str, Wire]]()
    while waiting:
        source = waiting.pop()
        if (source.frame.path, source.wire) not in seen:
            seen.add((source.frame.path, source.wire))
            yield source
            waiting += [find_source(source.frame, wire) for wire in follow(source)]


def inputs_before(frame: Frame, wires: Iterable[Wire]) -> set[str]:
    """Return the inputs of the model from which the values `wires` of the graph `frame` are computed. A value that is
    itself an input of the model is in the result."""
    return {source.wire for source in walk(frame, wires) if source.node is None}


class Slice(NamedTuple):
    """Part of a field: the positions `start:stop` of its first dimension after the batch. `stop`: None means to the
    end."""

    field: str
    start: int = 0
    stop: int | None = None


def find_slice(frame: Frame, wire: Wire) -> Slice | None:
    """Return the part of a field that is the value `wire` of the graph `frame`. The type of the part may be converted.
    Return None if the value is neither a field nor a slice of one along the first dimension after the batch."""
    frame, name, node, inputs = find_source(frame, wire)
    if node is None:
        return Slice(name)
    term = node.expression.root if isinstance(node, ExpressionNode) else None
    while isinstance(term, Operation) and term.name in ("bool", "float", "int"):
        term = term.operands[0]
    if isinstance(term, Reference):
        return find_slice(frame, inputs[term.text])
    if not isinstance(term, Operation) or term.name != INDEX or not isinstance(term.operands[0], Reference):
        return None
    whole, index = find_slice(frame, inputs[term.operands[0].text]), term.options["index"]
    if whole is None or whole[1:] != (0, None) or not isinstance(index, tuple) or len(index) != 2:
        return None
    part = index[1]
    if not isinstance(part, slice) or part.step not in (None, 1):
        return None
    return Slice(whole.field, part.start or 0, part.stop)


def operation_of(scope: Scope, wire: Wire) -> str | None:
    """Return the operation that computes a value of the model `scope`: the type of a layer, or the outermost function
    of an expression. None if the value is an input, or has no such operation. Functions that only select, rearrange or
    convert values (such as a slice) are skipped."""
    frame = Frame(scope)
    while True:
        frame, _, node, inputs = find_source(frame, wire)
        term = None if node is None else term_of(node)
        if term is None:
            return node.layer.type if isinstance(node, LayerNode) else None
        while isinstance(term, Operation) and term.name in _PASSING:
            term = term.operands[0]
        if not isinstance(term, Reference):
            return term.name if isinstance(term, Operation) else None
        wire = inputs[term.text]


def all_nodes(frame: Frame) -> Iterator[tuple[Frame, ModelNode]]:
    """Yield (graph that contains it, node) for each node in `frame` and in the blocks inside it."""
    for node in frame.scope.nodes:
        yield frame, node
        if isinstance(node, BlockNode):
            yield from all_nodes(Frame(node.scope, node, frame))


def all_layers(scope: Scope) -> Iterator[LayerNode]:
    """Yield each layer of the model `scope`, also those in blocks."""
    return (node for _, node in all_nodes(Frame(scope)) if isinstance(node, LayerNode))
