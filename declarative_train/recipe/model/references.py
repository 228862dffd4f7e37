"""References to nodes: the texts in `input` and `inputs` of a node, such as `encoder.hidden`. Each reference is
connected to an input (a port) of the node.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from collections.abc import Sequence as SequenceABC
from typing import NamedTuple

from declarative_train.components.component import Port
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.names import NAME, is_name
from declarative_train.core.span import Span
from declarative_train.recipe.checks.blocks import bad_name, reserved_name
from declarative_train.recipe.checks.keys import wrong_type
from declarative_train.recipe.checks.wiring import bad_reference, input_and_inputs, too_many_inputs, unknown_port
from declarative_train.source.node import Mapping, Node, Scalar, Sequence, describe_node

REUSE = "reuse"

_REFERENCE = re.compile(
    rf"(?P<name>{NAME})(?:\.(?P<copy>\d+))?(?:\.(?P<output>{NAME}))?(?P<more>(?:\.[a-z0-9_]+)*)", re.ASCII
)


def check_name(key: Scalar, what: str, reserved: Collection[str] = ()) -> Diagnostic | None:
    """Return the error for an invalid or reserved name in the recipe; None if it is valid. `what`: the thing that is
    named ("a node"), for the message."""
    if not isinstance(key.value, str) or not is_name(key.text):
        return bad_name(key.span, key.text, what)
    return reserved_name(key.span, key.text, what) if key.text in reserved else None


class Edge(NamedTuple):
    """Reference to a node's output, split into its parts: `node[.copy][.output]`. `text`: the whole reference as
    written. `below`: text after the output, which is an error, such as `.attn` in `gpt.out.attn`. `is_default`: the
    recipe has no reference here; a node without `input` reads the node above it."""

    name: str
    copy: int | None
    output: str | None
    text: str
    span: Span
    is_default: bool = False
    below: str = ""


def read_reference(text: str, span: Span) -> Edge | None:
    """Return the reference in a text; None if the text does not have the form of one. `span`: where the text is
    written.
    """
    match = _REFERENCE.fullmatch(text)
    if match is None or (match["copy"] and len(match["copy"]) > 9):
        return None
    copy = None if match["copy"] is None else int(match["copy"])
    return Edge(match["name"], copy, match["output"], text, span, below=match["more"])


class RequestedInputs(NamedTuple):
    """References in the key `input` or `inputs` of a node. A reference that could not be read is None.

    `listed`: the one reference in `input`, or those in a list `inputs`. `listed_nodes`: YAML nodes of `listed`, for
    messages. `named`: (name of the input, its references) for each entry, if `inputs` is a mapping."""

    listed: tuple[Edge | None, ...] = ()
    named: tuple[tuple[Scalar, tuple[Edge | None, ...]], ...] = ()
    listed_nodes: tuple[Node, ...] = ()

    @property
    def edges(self) -> list[Edge | None]:
        return [*self.listed, *(edge for _, edges in self.named for edge in edges)]


def read_requested(node: Mapping) -> tuple[RequestedInputs, list[Diagnostic]]:
    """Return the references in `input` and `inputs` of a node, and errors. A reference with an error is None. `node`:
    the keys of the node, after templates were rendered."""
    one, many = node.entry("input"), node.entry("inputs")
    if one is not None and many is not None:
        return RequestedInputs((None,)), [input_and_inputs(many.key.span, one.key.span)]
    if one is not None:
        edge, found = _edge(one.value)
        return RequestedInputs((edge,), listed_nodes=(one.value,)), found
    if many is None:
        return RequestedInputs(), []
    if isinstance(many.value, Sequence):
        edges, found = _edges(many.value)
        return RequestedInputs(edges, listed_nodes=many.value.items), found
    if isinstance(many.value, Mapping):
        return _read_named(many.value)
    what, hint = describe_node(many.value), None
    if isinstance(many.value, Scalar) and isinstance(many.value.value, str):
        what, text = "one name", many.value.value
        hint = f"write `inputs: [{text}]`" if "," in text else f"write `input: {text}` or `inputs: [{text}]`"
    wrong = wrong_type(many.value.span, "inputs", what, "a list or a mapping", hint)
    return RequestedInputs((None,)), [wrong]


def _read_named(node: Mapping) -> tuple[RequestedInputs, list[Diagnostic]]:
    named: list[tuple[Scalar, tuple[Edge | None, ...]]] = []
    diagnostics: list[Diagnostic] = []
    for entry in node:
        if isinstance(entry.value, Sequence):
            edges, found = _edges(entry.value)
        else:
            edge, found = _edge(entry.value)
            edges = (edge,)
        named.append((entry.key, edges))
        diagnostics += found
    return RequestedInputs(named=tuple(named)), diagnostics


def _edges(node: Sequence) -> tuple[tuple[Edge | None, ...], list[Diagnostic]]:
    read = [_edge(item) for item in node.items]
    return tuple(edge for edge, _ in read), [problem for _, found in read for problem in found]


def _edge(node: Node) -> tuple[Edge | None, list[Diagnostic]]:
    if not isinstance(node, Scalar) or not isinstance(node.value, str):
        hint = "put a list under `inputs`" if isinstance(node, Sequence) else None
        return None, [bad_reference(node.span, describe_node(node), hint)]
    edge = read_reference(node.value, node.span)
    if edge is not None:
        return edge, []
    return None, [no_reference(node.value, node.span)]


def no_reference(text: str, span: Span) -> Diagnostic:
    """Return the error for a text that does not have the form of a reference."""
    looks_computed = any(sign in text for sign in "+-*/[(<>=&|~@ ")
    hint = f"make the expression a node, `NAME: {text}`, and refer to it" if looks_computed else None
    if read_reference(text.lower(), span) is not None:
        hint = f"names are lower-case: `{text.lower()}`"
    return bad_reference(span, f"`{text}`", hint)


def bind(
    wanted: RequestedInputs, ports: SequenceABC[Port], kind: str, above: Edge | None
) -> tuple[dict[str, Edge | None], list[Diagnostic]]:
    """Return {input: reference} for the connected inputs of a node, and errors. Inputs of a variadic port are `NAME.0`,
    `NAME.1`, ... A missing required input is found later, by `open_required`.

    `wanted`  references written at the node
    `ports`   inputs that the node can have
    `kind`    name of its type, for messages
    `above`   reference to the node above, for the first input if it is not connected; None: there is no such node"""
    bound: dict[str, Edge | None] = {}
    diagnostics: list[Diagnostic] = []
    for position, edge in enumerate(wanted.listed):
        key = _port_key(ports, position)
        if key is not None:
            bound[key] = edge
        elif not diagnostics and wanted.listed_nodes:
            diagnostics.append(too_many_inputs(wanted.listed_nodes[position].span, kind, [port.name for port in ports]))
    known = {port.name: port for port in ports}
    for name, edges in wanted.named:
        port = known.get(name.text)
        if port is None:
            diagnostics.append(unknown_port(name.span, name.text, kind, known))
        elif port.variadic:
            bound.update({f"{port.name}.{number}": edge for number, edge in enumerate(edges)})
        elif len(edges) == 1:
            bound[port.name] = edges[0]
        else:
            bound[port.name] = None
            diagnostics.append(wrong_type(name.span, f"inputs.{port.name}", "a list", "one name"))
    first = first_key(ports)
    if first is not None and first not in bound and above is not None:
        bound = {first: above, **bound}
    return bound, diagnostics


def _port_key(ports: SequenceABC[Port], position: int) -> str | None:
    if position < len(ports) and not ports[position].variadic:
        return ports[position].name
    last = len(ports) - 1
    return f"{ports[last].name}.{position - last}" if ports and ports[last].variadic else None


def first_key(ports: SequenceABC[Port]) -> str | None:
    """Return the name of the first input in `ports`, such as `x`, or `x.0` if the port is variadic. Return None if
    there are no ports. This input has a default source: the node above or, in a copy of a `repeat`, the previous
    copy."""
    if not ports:
        return None
    return f"{ports[0].name}.0" if ports[0].variadic else ports[0].name


def open_required(ports: SequenceABC[Port], bound: dict[str, Edge | None]) -> list[Port]:
    """Return the required inputs in `ports` that have no reference. `bound`: {input: reference} of the connected
    inputs.
    """
    return [
        port for port in ports if not port.optional and (f"{port.name}.0" if port.variadic else port.name) not in bound
    ]


def only_inputs(node: Mapping) -> Mapping:
    """Return the entries `input` and `inputs` of a node."""
    return node.only(("input", "inputs"))
