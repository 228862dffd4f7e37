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
from declarative_train.source.node import Mapping as MappingNode
from declarative_train.source.node import Scalar

Wire = str
_PASSING = VIEWS | {"float"}


@dataclass(frozen=True, slots=True)
class _Node:
    """Node of any kind. `name`: in its scope (`layers.0`); `path`: from the root (`gpt.layers.0`). `span`: the place of
    the whole entry; `key_span`: of its name; `input_spans`: of the reference for each input."""

    name: str
    path: str
    inputs: Mapping[str, Wire]
    span: Span
    key_span: Span
    input_spans: Mapping[str, Span]


@dataclass(frozen=True, slots=True)
class LayerNode(_Node):
    """Layer. `params`: in a block of the package, the keys whose values come from a param that the recipe gives, with
    that param's name."""

    layer: Layer
    field_spans: Mapping[str, Span]
    params: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExpressionNode(_Node):
    """Tensor expression. `inputs`: each name in it as written (`mu`, `lstm.hidden`) -> wire. `scalar`: the text as
    written (or rendered)."""

    expression: Expression
    scalar: Scalar

    def place(self, offset: int, length: int) -> Span:
        """Return the place of a part of the expression; if it was rendered by a template, that of the whole."""
        return self.scalar.place(offset, length)


class PublishedError(ValueError):
    """Error: files of a published model cannot be used, in one line. `hint`: a fix."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class Published(NamedTuple):
    """Published model that gave a node its sizes: its folder and its config; None if there is none."""

    folder: str | None = None
    config: dict[str, object] | None = None


@dataclass(frozen=True, slots=True)
class BlockNode(_Node):
    """Block with its own graph. `params`: values of a shipped one. `published` is set if published models match it."""

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
    """Return what a node computes as an expression over its `inputs`; None for a layer that has no equivalent
    expression."""
    if isinstance(node, ExpressionNode):
        return node.expression.root
    if not isinstance(node, LayerNode) or not node.layer.operation:
        return None
    return call_of(node.layer.operation, node.inputs)


class Scope(NamedTuple):
    """Nodes of the model, or of a block, in an order in which each follows all nodes that it reads.

    `inputs`: of the model, the fields that nodes read; of a block, its inputs without optional ones that get nothing.
    `units`: the copies of the outermost `repeat`s, else the top-level layers and blocks (decisions, Q36).
    """

    inputs: tuple[str, ...]
    nodes: tuple[ModelNode, ...]
    outputs: Mapping[str, Wire]
    units: tuple[str, ...] = ()  # paths, main scope only


class BlockRules(NamedTuple):
    """Settings in a block's `parameters`, for one node of that block.

    `prefix`: the path of the node. `entries`: the mapping as written; its templates may read `names` (params) and, if a
    selector passes a `repeat`, `index`. `may_miss`: selectors may match nothing, as in a block of the package, whose
    params can remove parameters.
    """

    prefix: str
    entries: MappingNode
    names: Mapping[str, object]
    may_miss: bool = False


def num_nodes(scope: Scope) -> int:
    """Return the number of layers and expressions, those inside blocks included."""
    return sum(num_nodes(node.scope) if isinstance(node, BlockNode) else 1 for node in scope.nodes)


def inputs_before(scope: Scope, names: set[str]) -> set[str]:
    """Return the scope's inputs that these nodes depend on. A name that is not a node's counts as an input."""
    wanted, found = set(names), names - {node.name for node in scope.nodes}
    for node in reversed(scope.nodes):
        if node.name in wanted:
            for wire in node.inputs.values():
                name, colon, _ = wire.partition(":")
                (wanted if colon else found).add(name)
    return found


def operation_of(scope: Scope, wire: Wire) -> str | None:
    """Return what computes a wire's values: the type of a layer, or the last function of an expression, inside blocks
    too. Slices and expressions that only pass values on are skipped."""
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
