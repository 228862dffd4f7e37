"""An entry of a graph -> a draft: its type, its ports, what it asks for; references not yet followed."""

from __future__ import annotations

from collections.abc import Mapping as MappingABC
from dataclasses import dataclass, field
from typing import Literal

from declarative_train.components.component import Layer, Port
from declarative_train.components.expressions.grammar import Expression, parse
from declarative_train.components.expressions.tree import ExpressionError
from declarative_train.diagnostics.diagnostic import Diagnostic
from declarative_train.diagnostics.suggest import nearest
from declarative_train.recipe.checks.blocks import bad_node, bad_repeat, bad_reuse, bad_when, model_too_large
from declarative_train.recipe.checks.expressions import (
    batch_dimension,
    expression_form,
    expression_syntax,
    function_arguments,
    unknown_function,
)
from declarative_train.recipe.checks.keys import missing_key, unknown_key, unknown_type, wrong_type, wrong_value
from declarative_train.recipe.model.blocks import BlockDefinition, Library
from declarative_train.recipe.model.wiring_names import REUSE, Edge, check_name, read_reference
from declarative_train.recipe.model.wiring_ports import RequestedInputs, only_inputs, read_requested
from declarative_train.source.node import Entry, Mapping, Scalar, found_words, to_value
from declarative_train.source.template import Templates
from declarative_train.terms.names import NODE_WORDS, RESERVED
from declarative_train.terms.span import Span

MOST_NODES = 50_000

_RULES = {
    "syntax": expression_syntax,
    "form": expression_form,
    "function": unknown_function,
    "arguments": function_arguments,
    "batch": batch_dimension,
}


@dataclass(slots=True)
class NodeDraft:
    """A node on its way. `broken`: what is wrong with it is reported, and nothing more is reported of it.

    `fields` are the node's own keys, not yet rendered: each copy renders them with its `index`. `is_off`: `when` is
    false, so the node stands for its first input.
    """

    name: str
    entry: Entry
    kind: Literal["layer", "block", "expression", "reuse", "broken"]
    type_name: str = ""
    ports: tuple[Port, ...] = ()
    outputs: tuple[str, ...] = ("output",)
    wanted: RequestedInputs = field(default_factory=RequestedInputs)
    num_copies: int | None = None
    is_off: bool = False
    fields: Mapping | None = None
    type_span: Span | None = None
    layer: type[Layer] | None = None
    block: BlockDefinition | None = None
    expression: Expression | None = None
    scalar: Scalar | None = None
    target: Edge | None = None  # of a reuse

    def reserved(self) -> tuple[Entry, ...]:
        """The keys that every node has, but for its type."""
        node = self.entry.value
        return tuple(e for e in node if e.name in NODE_WORDS) if isinstance(node, Mapping) else ()

    @property
    def edges_of_expression(self) -> dict[str, Edge | None]:
        """Each name of an expression as an edge at its place in the text."""
        assert self.expression is not None
        assert self.scalar is not None
        return {
            name.text: read_reference(name.text, self.scalar.place(name.offset, len(name.text)))
            for name in self.expression.names
        }


def read_entry(
    entry: Entry,
    library: Library,
    templates: Templates,
    names: MappingABC[str, object],
    inside: BlockDefinition | None,
    graph: Mapping,
) -> tuple[NodeDraft, list[Diagnostic]]:
    """The draft of a node of `graph`. `names` are those that its templates see, `index` aside."""
    broken = NodeDraft(entry.name, entry, "broken")
    problem = check_name(entry.key, "a node")
    if problem is not None:
        return broken, [problem]
    if isinstance(entry.value, Mapping):
        draft, found = _component(entry, entry.value, library, templates, names, inside)
        return draft, [_no_type(entry, library, graph), *found] if entry.value.entry("type") is None else found
    if isinstance(entry.value, Scalar) and isinstance(entry.value.value, str):
        return _expression(entry, entry.value, templates, names)
    hint = None if isinstance(entry.value, Scalar) else "an expression that begins with `[` needs quotes"
    return broken, [bad_node(entry.value.span, entry.name, found_words(entry.value), hint)]


def _expression(
    entry: Entry, typed: Scalar, templates: Templates, names: MappingABC[str, object]
) -> tuple[NodeDraft, list[Diagnostic]]:
    broken = NodeDraft(entry.name, entry, "broken")
    scalar, found = templates.render(typed, names)
    if found:
        return broken, found
    if not isinstance(scalar, Scalar) or not isinstance(scalar.value, str):
        return broken, [bad_node(scalar.span, entry.name, found_words(scalar), "templates give parts of an expression")]
    try:
        expression = parse(scalar.value)
    except ExpressionError as problem:
        span = scalar.place(problem.offset, problem.length)
        return broken, [_RULES[problem.rule](span, problem)]
    return NodeDraft(entry.name, entry, "expression", expression=expression, scalar=scalar), []


def _component(
    entry: Entry,
    node: Mapping,
    library: Library,
    templates: Templates,
    names: MappingABC[str, object],
    inside: BlockDefinition | None,
) -> tuple[NodeDraft, list[Diagnostic]]:
    draft = NodeDraft(entry.name, entry, "broken", fields=node.without(RESERVED))
    diagnostics: list[Diagnostic] = []
    inputs, found = templates.render(only_inputs(node), names)
    assert isinstance(inputs, Mapping)
    if found:
        draft.wanted = RequestedInputs((None,))
    else:
        draft.wanted, found = read_requested(inputs)
    diagnostics += found
    diagnostics += _read_type(draft, node, library, templates, names, inside)
    diagnostics += _read_repeat(draft, node.entry("repeat"), templates, names)
    diagnostics += _read_when(draft, node.entry("when"), templates, names)
    if draft.layer is not None and draft.layer.counts_only:
        for word in ("repeat", "when"):
            if (entry_of := node.entry(word)) is not None:
                hint = "one dimension more in `shape` holds several" if word == "repeat" else "leave the node out"
                diagnostics.append(wrong_value(entry_of.key.span, f"`{draft.type_name}` takes no `{word}`", hint))
    if (handed := node.entry("params")) is not None:  # in a block it is written out by now
        message = "`params` hands on the params of a block, and this node is in none"
        diagnostics.append(wrong_value(handed.key.span, message, "write the keys with their values"))
    return draft, diagnostics


def _no_type(entry: Entry, library: Library, graph: Mapping) -> Diagnostic:
    span = entry.key.span
    close = nearest(entry.name, [other.name for other in graph if other.key.span.path != span.path])
    if close is not None:  # a node of the base, to be changed here
        return missing_key(span, "type", f"the node `{entry.name}`", help=f"did you mean `{close}`?")
    like = entry.name if entry.name in library.types() else "linear"
    return missing_key(span, "type", f"the node `{entry.name}`", like)


def _read_type(
    draft: NodeDraft,
    node: Mapping,
    library: Library,
    templates: Templates,
    names: MappingABC[str, object],
    inside: BlockDefinition | None,
) -> list[Diagnostic]:
    written = node.get("type")
    if written is None:
        return []  # which is reported
    kind, found = templates.render(written, names)
    if found:
        return found
    if not isinstance(kind, Scalar) or not isinstance(kind.value, str):
        return [wrong_type(kind.span, "type", found_words(kind), "the name of a layer or a block")]
    draft.type_name, draft.type_span = kind.value, kind.span
    if kind.value == REUSE:
        return _read_reuse(draft, templates, names)
    named = library.find(kind.value, inside)
    if named is None and library.is_broken(kind.value):
        return []
    if named is None:
        types = library.types()
        hint = None if nearest(kind.value, types) else f"`dtrain list` shows all {len(types)}"
        return [unknown_type(kind.span, kind.value, "layer or block", types, hint, library.own(), "plugins")]
    if isinstance(named, BlockDefinition):
        draft.kind, draft.block = "block", named
        draft.ports, draft.outputs = named.ports, tuple(named.outputs)
    else:
        draft.kind, draft.layer = "layer", named
        draft.ports, draft.outputs = named.ports, named.outputs
    return []


def _read_reuse(draft: NodeDraft, templates: Templates, names: MappingABC[str, object]) -> list[Diagnostic]:
    assert draft.fields is not None
    beside = {entry.name for entry in (*draft.reserved(), *draft.fields)}
    diagnostics = [
        unknown_key(entry.key.span, entry.name, "`reuse`", ["node", *RESERVED], beside=beside)
        for entry in draft.fields
        if entry.name != "node"
    ]
    written = draft.fields.get("node")
    if written is None:
        return [*diagnostics, missing_key(draft.type_span or draft.entry.key.span, "node", "`reuse`", "NAME")]
    node, found = templates.render(written, names)
    text = node.value if isinstance(node, Scalar) and isinstance(node.value, str) else None
    target = None if text is None else read_reference(text, node.span)
    if target is None or found:
        return [*diagnostics, *(found or [wrong_type(node.span, "node", found_words(node), "the name of a node")])]
    if target.output is not None:
        hint = f"a node is called again whole: `node: {target.name}`"
        return [*diagnostics, bad_reuse(target.span, f"`{target.text}` is an output, not a node", hint)]
    if not diagnostics:
        draft.kind, draft.target = "reuse", target
    return diagnostics


def _read_repeat(
    draft: NodeDraft, entry: Entry | None, templates: Templates, names: MappingABC[str, object]
) -> list[Diagnostic]:
    if entry is None:
        return []
    node, found = templates.render(entry.value, names)
    if found:
        draft.kind = "broken"
        return found
    value = node.value if isinstance(node, Scalar) else None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        draft.kind = "broken"
        return [bad_repeat(node.span, found_words(node), "`when: false` switches a node off" if value == 0 else None)]
    if value > MOST_NODES:
        draft.kind = "broken"
        return [model_too_large(node.span, f"more than {MOST_NODES:,} nodes")]
    draft.num_copies = value
    return []


def _read_when(
    draft: NodeDraft, entry: Entry | None, templates: Templates, names: MappingABC[str, object]
) -> list[Diagnostic]:
    if entry is None:
        return []
    node, found = templates.render(entry.value, names)
    if found:
        draft.kind = "broken"
        return found
    value = node.value if isinstance(node, Scalar) else None
    if not isinstance(value, bool):
        draft.kind = "broken"
        return [bad_when(node.span, found_words(node), to_value(node))]
    draft.is_off = not value
    return []
