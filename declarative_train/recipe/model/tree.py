"""Tree of the nodes of a model, with blocks expanded, copies made, templates rendered and references resolved. Shapes
are not yet known.

A wire is the name of a value: `name` is an input of the graph, `node:output` an output of a node.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from declarative_train.components.component import Layer
from declarative_train.components.expressions.grammar import Expression
from declarative_train.components.expressions.tree import Term, call_of
from declarative_train.core.span import Span
from declarative_train.source.node import Mapping as MappingNode
from declarative_train.source.node import Scalar

Wire = str


@dataclass(frozen=True, slots=True)
class _Node:
    """Node of any kind. `name`: its name within its graph (`layers.0`). `path`: the names from the root
    (`gpt.layers.0`). `inputs`: {input: name of the value that it reads}. `span`: where the whole entry is written;
    `key_span`: where its name is; `input_spans`: {input: where its reference is written}."""

    name: str
    path: str
    inputs: Mapping[str, Wire]
    span: Span
    key_span: Span
    input_spans: Mapping[str, Span]


@dataclass(frozen=True, slots=True)
class LayerNode(_Node):
    """Layer in a graph. `field_spans`: {key of the layer: span of its value}. `params`: for a layer in a shipped block,
    {key of the layer: parameter of the block that sets it}, without parameters that have their default; otherwise {}.
    """

    layer: Layer
    field_spans: Mapping[str, Span]
    params: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExpressionNode(_Node):
    """Tensor expression in a graph. `inputs`: {reference in the expression, such as `mu` or `lstm.hidden`: the Wire
    that it means}. `scalar`: the text of the expression, with templates rendered, and its place in the recipe."""

    expression: Expression
    scalar: Scalar

    def place(self, offset: int, length: int) -> Span:
        """Return the span of the `length` characters of the expression from character `offset` on or, if the text was
        rendered from a template, of the whole text."""
        return self.scalar.place(offset, length)


class PublishedError(ValueError):
    """Error: the files of a published model cannot be used. The message is one line. `hint`: how to fix it."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class Published(NamedTuple):
    """Published model, such as a llama, that has the structure of a node. `folder`, `config`: its folder and its
    configuration. Both are None if the node names no folder, and only has the structure of a family of models."""

    folder: str | None = None
    config: dict[str, object] | None = None


@dataclass(frozen=True, slots=True)
class BlockNode(_Node):
    """Node whose type is a block. `scope`: the graph inside, with its own nodes. `params`: values of its parameters,
    only for a shipped block. `published`: the published model (such as a llama) to which the block corresponds, else
    None.
    """

    block: str
    scope: "Scope"
    params: Mapping[str, object] = field(default_factory=dict)
    published: Published | None = None


@dataclass(frozen=True, slots=True)
class ReuseNode(_Node):
    """Second or later call of a node, with the same parameters. `target`: name of the node that is called again, which
    is in the same graph.
    """

    target: str


ModelNode = LayerNode | ExpressionNode | BlockNode | ReuseNode


def term_of(node: ModelNode) -> Term | None:
    """Return what a node computes, as an expression over its `inputs`. None for a block, for a `reuse` node, and for a
    layer that cannot be written as an expression."""
    if isinstance(node, ExpressionNode):
        return node.expression.root
    if not isinstance(node, LayerNode) or not node.layer.operation:
        return None
    return call_of(node.layer.operation, node.inputs)


class Scope(NamedTuple):
    """Graph of the model or of a block. Each node comes after the nodes that it reads.

    inputs    for the model, the fields that nodes read; for a block, its connected inputs
    outputs   dict from the name of an output to its value (Wire)
    units     for the model, paths of what is sharded and compiled one by one: copies of the outermost `repeat`s, else
              top-level layers and blocks (docs/decisions.md, Q36); () for a block
    """

    inputs: tuple[str, ...]
    nodes: tuple[ModelNode, ...]
    outputs: Mapping[str, Wire]
    units: tuple[str, ...] = ()


class BlockRules(NamedTuple):
    """Settings of parameters (key `parameters`) in the definition of a block, for one node that uses the block.

    `prefix`: path of the node. `entries`: the mapping as written. `names`: values of the block's parameters, which
    templates in the entries can read. `may_miss`: a selector may match no parameter. This is allowed in shipped blocks,
    where a setting can leave layers out."""

    prefix: str
    entries: MappingNode
    names: Mapping[str, object]
    may_miss: bool = False
