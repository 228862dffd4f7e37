"""Drafts of nodes: the type, inputs and outputs of an entry of a graph, before references are resolved."""

from __future__ import annotations

from collections.abc import Mapping as MappingABC
from dataclasses import dataclass
from typing import Any

from declarative_train.components.component import Layer, Port
from declarative_train.components.expressions.grammar import Expression, TypedName, parse
from declarative_train.components.expressions.tree import ExpressionError
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.diagnostics.suggest import nearest
from declarative_train.core.names import NODE_WORDS, RESERVED
from declarative_train.core.span import Span
from declarative_train.recipe.checks.blocks import bad_node, bad_repeat, bad_reuse, bad_when, model_too_large
from declarative_train.recipe.checks.expressions import (
    batch_dimension,
    expression_form,
    expression_syntax,
    function_arguments,
    unknown_function,
)
from declarative_train.recipe.checks.keys import missing_key, unknown_key, unknown_type, wrong_type, wrong_value
from declarative_train.recipe.model.blocks import BlockDefinition, TypeLibrary
from declarative_train.recipe.model.references import (
    REUSE,
    Edge,
    RequestedInputs,
    check_name,
    only_inputs,
    read_reference,
    read_requested,
)
from declarative_train.source.node import Entry, Mapping, Node, Scalar, describe_node, to_value
from declarative_train.source.template import Templates

MOST_NODES = 50_000

_RULES = {
    "syntax": expression_syntax,
    "form": expression_form,
    "function": unknown_function,
    "arguments": function_arguments,
    "batch": batch_dimension,
}


@dataclass(slots=True, kw_only=True)
class _Draft:
    """Draft of a node: its name, its entry in the recipe, its inputs (`ports`) and outputs. `num_copies`: the number
    under `repeat`, or None. `is_off`: the node's `when` is false, so its readers read its first input instead."""

    name: str
    entry: Entry
    ports: tuple[Port, ...] = ()
    outputs: tuple[str, ...] = ("output",)
    num_copies: int | None = None
    is_off: bool = False


@dataclass(slots=True, kw_only=True)
class BrokenDraft(_Draft):
    """Draft of a node with errors that are already reported. `wanted`: the references in its `input` and `inputs`; None
    if they could not be read.
    """

    wanted: RequestedInputs | None = None


@dataclass(slots=True, kw_only=True)
class ExpressionDraft(_Draft):
    expression: Expression
    scalar: Scalar

    @property
    def edges(self) -> dict[str, Edge | None]:
        """References in the expression: {text: reference, or None if the text is not a valid reference}."""
        return {name.text: read_reference(name.text, self._place(name)) for name in self.expression.names}

    def place_of(self, name: str) -> Span:
        """Return the span of the first occurrence of `name` in the expression, which must contain it."""
        return self._place(next(each for each in self.expression.names if each.text == name))

    def _place(self, name: TypedName) -> Span:
        return self.scalar.place(name.offset, len(name.text))


@dataclass(slots=True, kw_only=True)
class _TypedDraft(_Draft):
    """Draft of a node with a `type`. `fields`: the keys of the type, before their templates are rendered, because each
    copy of a `repeat` renders them with its own `index`. `wanted`: the references in `input` and `inputs`."""

    type_name: str
    type_span: Span
    fields: Mapping
    wanted: RequestedInputs

    @property
    def reserved(self) -> tuple[Entry, ...]:
        """Entries of the node that do not belong to its type: keys that every node may have, such as `input`, `repeat`
        and `when`."""
        node = self.entry.value
        return tuple(e for e in node if e.name in NODE_WORDS) if isinstance(node, Mapping) else ()


@dataclass(slots=True, kw_only=True)
class LayerDraft(_TypedDraft):
    layer: type[Layer]


@dataclass(slots=True, kw_only=True)
class BlockDraft(_TypedDraft):
    block: BlockDefinition


@dataclass(slots=True, kw_only=True)
class ReuseDraft(_TypedDraft):
    """Draft of a `reuse` node, which calls another node again. `target`: reference to the other node, as written.
    `called`: draft of the other node; None until it is found.
    """

    target: Edge
    called: LayerDraft | BlockDraft | None = None


Typed = LayerDraft | BlockDraft | ReuseDraft
NodeDraft = Typed | ExpressionDraft | BrokenDraft


def find_called(draft: NodeDraft | None) -> LayerDraft | BlockDraft | None:
    """Return the draft of the layer or block that a node calls. This is `draft` itself or, for a `reuse` node, the
    draft of the node that is called again. None for an expression and for a node with errors.
    """
    found = draft.called if isinstance(draft, ReuseDraft) else draft
    return found if isinstance(found, LayerDraft | BlockDraft) else None


def counts_only(draft: NodeDraft) -> bool:
    """Return whether a node uses only the number of samples of its input, not the values."""
    called = find_called(draft)
    return isinstance(called, LayerDraft) and called.layer.counts_only


class EntryReader:
    """Reader of the entries of a `graph`, which makes a draft of each. `found`: the diagnostics. `names`: the variables
    that templates may use, except `index`."""

    def __init__(
        self,
        library: TypeLibrary,
        templates: Templates,
        names: MappingABC[str, object],
        inside: BlockDefinition | None,
        graph: Mapping,
    ) -> None:
        self._library = library
        self._templates = templates
        self._names = names
        self._inside = inside
        self._graph = graph
        self.found: list[Diagnostic] = []

    def read(self, entry: Entry) -> NodeDraft:
        value = entry.value
        problem = check_name(entry.key, "a node")
        if problem is None and isinstance(value, Mapping):
            return self._component(entry, value)
        if problem is None and isinstance(value, Scalar) and isinstance(value.value, str):
            return self._expression(entry, value) or BrokenDraft(name=entry.name, entry=entry)
        if problem is None:
            hint = None if isinstance(value, Scalar) else "an expression that begins with `[` needs quotes"
            problem = bad_node(value.span, entry.name, describe_node(value), hint)
        self.found.append(problem)
        return BrokenDraft(name=entry.name, entry=entry)

    def _render(self, node: Node) -> Node | None:
        rendered, found = self._templates.render(node, self._names)
        self.found += found
        return None if found else rendered

    def _expression(self, entry: Entry, typed: Scalar) -> ExpressionDraft | None:
        scalar = self._render(typed)
        if scalar is None:
            return None
        if not isinstance(scalar, Scalar) or not isinstance(scalar.value, str):
            hint = "templates can only be parts of an expression"
            self.found.append(bad_node(scalar.span, entry.name, describe_node(scalar), hint))
            return None
        try:
            expression = parse(scalar.value)
        except ExpressionError as problem:
            self.found.append(_RULES[problem.rule](scalar.place(problem.offset, problem.length), problem))
            return None
        return ExpressionDraft(name=entry.name, entry=entry, expression=expression, scalar=scalar)

    def _component(self, entry: Entry, node: Mapping) -> Typed | BrokenDraft:
        if node.entry("type") is None:
            self.found.append(self._no_type(entry))
        inputs, wanted = self._render(only_inputs(node)), RequestedInputs((None,))
        if isinstance(inputs, Mapping):
            wanted, found = read_requested(inputs)
            self.found += found
        draft = self._read_typed(entry, node, wanted)
        said = len(self.found)
        num_copies = self._num_copies(node.entry("repeat"))
        is_off = self._is_off(node.entry("when"))
        is_broken = len(self.found) > said
        if isinstance(draft, LayerDraft) and counts_only(draft):
            for word in ("repeat", "when"):
                if (entry_of := node.entry(word)) is not None:
                    hint = "one more dimension in `shape` gives several" if word == "repeat" else "remove the node"
                    message = f"`{draft.type_name}` takes no `{word}`"
                    self.found.append(wrong_value(entry_of.key.span, message, hint))
        if (handed := node.entry("params")) is not None:  # inside a block, `params` is already replaced by its keys
            message = "`params` passes on the params of a block, but this node is not in a block"
            self.found.append(wrong_value(handed.key.span, message, "write the keys with their values"))
        if draft is None or is_broken:
            return BrokenDraft(name=entry.name, entry=entry, is_off=is_off, wanted=wanted)
        draft.num_copies, draft.is_off = num_copies, is_off
        return draft

    def _no_type(self, entry: Entry) -> Diagnostic:
        span = entry.key.span
        close = nearest(entry.name, [other.name for other in self._graph if other.key.span.path != span.path])
        if close is not None:  # the user probably means to change this node of the base recipe
            return missing_key(span, "type", f"the node `{entry.name}`", help=f"did you mean `{close}`?")
        like = entry.name if entry.name in self._library.types() else "linear"
        return missing_key(span, "type", f"the node `{entry.name}`", like)

    def _read_typed(self, entry: Entry, node: Mapping, wanted: RequestedInputs) -> Typed | None:
        written = node.get("type")
        kind = None if written is None else self._render(written)
        if kind is None:
            return None  # which is reported
        if not isinstance(kind, Scalar) or not isinstance(kind.value, str):
            self.found.append(wrong_type(kind.span, "type", describe_node(kind), "the name of a layer or a block"))
            return None
        common: dict[str, Any] = {
            "name": entry.name,
            "entry": entry,
            "type_name": kind.value,
            "type_span": kind.span,
            "fields": node.without(RESERVED),
            "wanted": wanted,
        }
        if kind.value == REUSE:
            target = self._target(node, kind.span)
            return None if target is None else ReuseDraft(**common, target=target)
        named = self._library.find(kind.value, self._inside)
        if named is None and not self._library.is_broken(kind.value):
            types = self._library.types()
            hint = None if nearest(kind.value, types) else f"`dtrain list` shows all {len(types)}"
            own = self._library.own()
            self.found.append(unknown_type(kind.span, kind.value, "layer or block", types, hint, own, "plugins"))
        if named is None:
            return None
        common |= {"ports": named.ports, "outputs": tuple(named.outputs)}
        if isinstance(named, BlockDefinition):
            return BlockDraft(**common, block=named)
        common["ports"] = named.ports_for([name.text for name, _ in wanted.named])
        return LayerDraft(**common, layer=named)

    def _target(self, node: Mapping, at: Span) -> Edge | None:
        """Return the reference under the key `node` of a `reuse` node: the node that it calls again. Report an error
        and return None if a key is missing, wrong or unknown. `node`: the mapping of the `reuse` node. `at`: span of
        the error about a missing key."""
        others = [entry for entry in node if entry.name not in ("node", *RESERVED)]
        present = {entry.name for entry in node if entry.name != "type"}
        self.found += [
            unknown_key(entry.key.span, entry.name, "`reuse`", ["node", *RESERVED], present=present) for entry in others
        ]
        written = node.get("node")
        if written is None:
            self.found.append(missing_key(at, "node", "`reuse`", "NAME"))
            return None
        called = self._render(written)
        if called is None:
            return None
        text = called.value if isinstance(called, Scalar) and isinstance(called.value, str) else None
        target = None if text is None else read_reference(text, called.span)
        if target is None:
            self.found.append(wrong_type(called.span, "node", describe_node(called), "the name of a node"))
            return None
        if target.output is not None:
            hint = f"a node can only be called again as a whole: `node: {target.name}`"
            self.found.append(bad_reuse(target.span, f"`{target.text}` is an output, not a node", hint))
            return None
        return None if others else target

    def _num_copies(self, entry: Entry | None) -> int | None:
        node = None if entry is None else self._render(entry.value)
        if node is None:
            return None
        value = node.value if isinstance(node, Scalar) else None
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            hint = "`when: false` disables a node" if value == 0 else None
            self.found.append(bad_repeat(node.span, describe_node(node), hint))
        elif value > MOST_NODES:
            self.found.append(model_too_large(node.span, f"more than {MOST_NODES:,} nodes"))
        else:
            return value
        return None

    def _is_off(self, entry: Entry | None) -> bool:
        node = None if entry is None else self._render(entry.value)
        if node is None:
            return False
        value = node.value if isinstance(node, Scalar) else None
        if not isinstance(value, bool):
            self.found.append(bad_when(node.span, describe_node(node), to_value(node)))
        return value is False
