"""Errors inside a shipped block, reported at the value of the recipe that caused them.

The user did not write the block. So a message points to the value that the recipe gives to a parameter of the block.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from collections.abc import Mapping as MappingABC

from declarative_train.core.diagnostics.diagnostic import Diagnostic, Related
from declarative_train.core.names import NAME
from declarative_train.core.span import Span
from declarative_train.recipe.model.blocks import BlockDefinition
from declarative_train.source.node import Entry, Mapping, Node, Scalar, Sequence

_PARAM = re.compile(rf"\bparams\.({NAME})")


def report_outside(problem: Diagnostic, block: BlockDefinition, fields: Mapping, at: Span) -> Diagnostic:
    """Return an error in the file of the shipped block `block` as an error of the node that uses the block. An error in
    another file is returned unchanged.

    The new error is at `at`, the span of the node's `type`. If the wrong text in the block reads exactly one of the
    node's keys `fields`, the error is at the value of this key instead.
    """
    assert block.file is not None
    if problem.span.path != block.file.path:
        return problem
    line = block.file.text.splitlines()[problem.span.line - 1]
    end = problem.span.end_column if problem.span.end_line == problem.span.line else len(line) + 1
    read = set(_PARAM.findall(line[problem.span.column - 1 : end - 1]))
    given = [entry.value.span for entry in fields if entry.name in read]
    return problem._replace(
        span=given[0] if len(given) == 1 else at,
        message=f"inside the shipped block `{block.name}`: {problem.message}",
        related=(*problem.related, Related(problem.span, "the cause is here")),
        fixes=(),
    )


def param_spans(block: BlockDefinition, fields: Mapping) -> dict[str, Span]:
    """Return {block parameter: span of its value} for a node that uses a shipped block; {} for other blocks. Parameters
    whose values are not written in the recipe are left out. `fields`: the keys of the node."""
    if block.file is None:
        return {}
    return {entry.name: entry.value.span for entry in fields if entry.value.span.path != block.file.path}


def params_read(node: Node) -> set[str]:
    """Return the names of the block parameters that a template reads (`params.NAME`); an empty set if `node` is not a
    scalar.
    """
    return set(_PARAM.findall(node.text)) if isinstance(node, Scalar) else set()


def move_outside(written: Node, rendered: Node, spans: MappingABC[str, Span]) -> Node:
    """Return `rendered`, a node inside a shipped block, with spans in the user's recipe. A value gets a span from
    `spans` if its template reads exactly one block parameter. Other values keep their span.

    `written`: the node before its templates were rendered. `spans`: {block parameter: span of its value in the
    recipe}."""
    if written is rendered or not spans:
        return rendered
    if isinstance(written, Scalar):
        read = params_read(written)
        span = spans.get(read.pop()) if len(read) == 1 else None
        return rendered if span is None else _move(rendered, span)
    if isinstance(written, Sequence) and isinstance(rendered, Sequence):
        pairs = zip(written.items, rendered.items, strict=True)
        return Sequence(tuple(move_outside(old, new, spans) for old, new in pairs), rendered.span)
    if isinstance(written, Mapping) and isinstance(rendered, Mapping):
        both = zip(written.entries, rendered.entries, strict=True)
        entries = (Entry(new.key, move_outside(old.value, new.value, spans)) for old, new in both)
        return Mapping(tuple(entries), rendered.span)
    return rendered


def _move(node: Node, span: Span) -> Node:
    if isinstance(node, Sequence):
        return Sequence(tuple(_move(item, span) for item in node.items), span)
    if isinstance(node, Mapping):
        return Mapping(node.with_values(lambda entry: _move(entry.value, span)).entries, span)
    return node._replace(span=span)


def field_spans(fields: Mapping, prefix: str = "") -> Iterable[tuple[str, Span]]:
    """Yield (dotted name, span) of every value in a mapping, nested ones included. `prefix`: text before each name."""
    for entry in fields:
        yield f"{prefix}{entry.name}", entry.value.span
        if isinstance(entry.value, Mapping):
            yield from field_spans(entry.value, f"{prefix}{entry.name}.")
