"""The model of a recipe with blocks opened, copies made, templates rendered and wires resolved; shapes not yet known.

Wires are written as in `graph/graph.py`: `name` for an input of the scope, `node:output` for a node's output.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from declarative_train.components.component import Layer
from declarative_train.components.expressions.functions import VIEWS
from declarative_train.components.expressions.grammar import Expression
from declarative_train.components.expressions.tree import Operation, Reference, Term, call_of
from declarative_train.core.span import Span
from declarative_train.recipe.model.published import Published
from declarative_train.source.node import Mapping as MappingNode
from declarative_train.source.node import Scalar

Wire = str
_PASSING = VIEWS | {"float"}


@dataclass(frozen=True, slots=True)
class _Node:
    """Every kind of node has `name` in its scope (`layers.0`), `path` from the root (`gpt.layers.0`), `span` of the
    whole entry's value, `key_span` of its name, `input_spans` of each port's reference (the node's span for a default
    wire)."""

    name: str
    path: str
    inputs: Mapping[str, Wire]
    span: Span
    key_span: Span
    input_spans: Mapping[str, Span]


@dataclass(frozen=True, slots=True)
class LayerNode(_Node):
    """`params`: in a shipped block, the fields that the recipe gives, under its name for each."""

    layer: Layer
    field_spans: Mapping[str, Span]
    params: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExpressionNode(_Node):
    """`inputs` maps each name of the expression as typed (`mu`, `lstm.hidden`) to a wire; a name's place in the text
    is in the expression. `scalar` is what was typed (or rendered)."""

    expression: Expression
    scalar: Scalar

    def place(self, offset: int, length: int) -> Span:
        """Where a part of the expression was typed; of a rendered one, all of it."""
        return self.scalar.place(offset, length)


@dataclass(frozen=True, slots=True)
class BlockNode(_Node):
    """A block, opened where it stands: its own graph. Of a shipped one `params` are its values, and `published` the
    model that it is made after."""

    block: str
    scope: "Scope"
    params: Mapping[str, object] = field(default_factory=dict)
    published: Published | None = None


@dataclass(frozen=True, slots=True)
class ReuseNode(_Node):
    """`target`: the node of the same scope that is called again."""

    target: str


ModelNode = LayerNode | ExpressionNode | BlockNode | ReuseNode


def term_of(node: ModelNode) -> Term | None:
    """What a node computes, as a term whose references are keys of its `inputs`: of an expression, and of a layer that
    an expression could stand for. None: of others."""
    if isinstance(node, ExpressionNode):
        return node.expression.root
    if not isinstance(node, LayerNode) or not node.layer.operation:
        return None
    return call_of(node.layer.operation, node.inputs)


class Scope(NamedTuple):
    """Nodes in an order in which each comes after all it reads. `inputs` are those that are wired: of the main scope
    the fields that nodes read, of a block all but the optional ones that are open. `units` are the copies of outermost
    repeats or, where the model has none, the top-level layers and blocks: see decisions, Q36."""

    inputs: tuple[str, ...]
    nodes: tuple[ModelNode, ...]
    outputs: Mapping[str, Wire]
    units: tuple[str, ...] = ()  # paths, main scope only


class BlockRules(NamedTuple):
    """The `parameters` of a block, once for each place where it stands. `prefix` is the path of that node, `entries`
    the mapping as written, whose templates see `names` (params) and, where a selector passes a repeat, `index`.
    `may_miss`: of a shipped block, whose params switch parameters off that its selectors name."""

    prefix: str
    entries: MappingNode
    names: Mapping[str, object]
    may_miss: bool = False


def num_nodes(scope: Scope) -> int:
    """The nodes that are not blocks, with those inside the blocks."""
    return sum(num_nodes(node.scope) if isinstance(node, BlockNode) else 1 for node in scope.nodes)


def inputs_before(scope: Scope, names: set[str]) -> set[str]:
    """All inputs of the scope on the way to these nodes; a name that is not a node's is one itself."""
    wanted, found = set(names), names - {node.name for node in scope.nodes}
    for node in reversed(scope.nodes):
        if node.name in wanted:
            for wire in node.inputs.values():
                name, colon, _ = wire.partition(":")
                (wanted if colon else found).add(name)
    return found


def operation_of(scope: Scope, wire: Wire) -> str | None:
    """What gives the values of a wire: the type of a layer, or the function of the same name that an expression calls
    last, inside blocks too. Slices and expressions that only pass something on are looked through."""
    name, _, output = wire.partition(":")
    node = next((node for node in scope.nodes if node.name == name), None)
    if isinstance(node, BlockNode):
        inner = node.scope.outputs.get(output)
        return None if inner is None else operation_of(node.scope, inner)
    if isinstance(node, ReuseNode):
        return operation_of(scope, f"{node.target}:{output}")
    term = None if node is None else term_of(node)
    if term is None or node is None:
        return node.layer.type if isinstance(node, LayerNode) else None
    while isinstance(term, Operation) and term.name in _PASSING:
        term = term.operands[0]
    if isinstance(term, Operation):
        return term.name
    wired = node.inputs.get(term.text) if isinstance(term, Reference) else None
    return None if wired is None else operation_of(scope, wired)
