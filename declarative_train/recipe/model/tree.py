"""Model of a recipe with blocks expanded, copies made, templates rendered and wires resolved; shapes are not yet known.

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
    """Node of any kind: `name` in its scope (`layers.0`), `path` from the root (`gpt.layers.0`), `span` of the whole
    entry's value, `key_span` of its name, `input_spans` of each port's reference (the node's span for a default wire).
    """

    name: str
    path: str
    inputs: Mapping[str, Wire]
    span: Span
    key_span: Span
    input_spans: Mapping[str, Span]


@dataclass(frozen=True, slots=True)
class LayerNode(_Node):
    """Layer. `params`: in a shipped block, the fields whose values the recipe gives, with the param's name for each."""

    layer: Layer
    field_spans: Mapping[str, Span]
    params: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExpressionNode(_Node):
    """Tensor expression. `inputs` maps each of its names as written (`mu`, `lstm.hidden`) to a wire; the names' places
    are in the expression. `scalar` is the text as written (or rendered).
    """

    expression: Expression
    scalar: Scalar

    def place(self, offset: int, length: int) -> Span:
        """Return the place of a part of the expression; for a rendered one, of all of it."""
        return self.scalar.place(offset, length)


@dataclass(frozen=True, slots=True)
class BlockNode(_Node):
    """Block with its own graph. For a shipped one, `params` are its values, and `published` the model that it
    follows.
    """

    block: str
    scope: "Scope"
    params: Mapping[str, object] = field(default_factory=dict)
    published: Published | None = None


@dataclass(frozen=True, slots=True)
class ReuseNode(_Node):
    """Second call of a node. `target`: the node of the same scope that is called again."""

    target: str


ModelNode = LayerNode | ExpressionNode | BlockNode | ReuseNode


def term_of(node: ModelNode) -> Term | None:
    """Return what a node computes, as a term whose references are keys of its `inputs`.

    None unless the node is an expression, or a layer that has an equivalent expression.
    """
    if isinstance(node, ExpressionNode):
        return node.expression.root
    if not isinstance(node, LayerNode) or not node.layer.operation:
        return None
    return call_of(node.layer.operation, node.inputs)


class Scope(NamedTuple):
    """Nodes in an order in which each follows all nodes that it reads.

    `inputs` are those that are wired: in the main scope the fields that nodes read, in a block all but optional ones
    that are open. `units` are the copies of outermost repeats or, without a repeat, the top-level layers and blocks:
    see decisions, Q36.
    """

    inputs: tuple[str, ...]
    nodes: tuple[ModelNode, ...]
    outputs: Mapping[str, Wire]
    units: tuple[str, ...] = ()  # paths, main scope only


class BlockRules(NamedTuple):
    """Settings of a block's `parameters`, once for each node of the block.

    `prefix` is the path of the node, `entries` the mapping as written, whose templates see `names` (params) and, if a
    selector passes a repeat, `index`. `may_miss`: for a shipped block, whose params can remove parameters that its
    selectors name.
    """

    prefix: str
    entries: MappingNode
    names: Mapping[str, object]
    may_miss: bool = False


def num_nodes(scope: Scope) -> int:
    """Count the nodes that are not blocks, including those inside blocks."""
    return sum(num_nodes(node.scope) if isinstance(node, BlockNode) else 1 for node in scope.nodes)


def inputs_before(scope: Scope, names: set[str]) -> set[str]:
    """Return all inputs of the scope that lead to these nodes; a name that is not a node's is an input itself."""
    wanted, found = set(names), names - {node.name for node in scope.nodes}
    for node in reversed(scope.nodes):
        if node.name in wanted:
            for wire in node.inputs.values():
                name, colon, _ = wire.partition(":")
                (wanted if colon else found).add(name)
    return found


def operation_of(scope: Scope, wire: Wire) -> str | None:
    """Return what computes a wire: the type of a layer, or the function that an expression calls last, also in blocks.

    Slices and expressions that only pass values on are skipped.
    """
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
