"""The syntax tree of a template: what may stand in it, and the parts that are led through filters which count.

Jinja's sandbox intercepts operators and calls. Loops, `~`, comparisons and slices it leaves to Python, so they are
wrapped in filters of our own (`_counted`, `_concat`, `_seen`, in `sandbox.py`) before the tree is compiled.
"""

from __future__ import annotations

from typing import Any

from jinja2 import nodes
from jinja2.exceptions import TemplateSyntaxError

MAX_TEXT = 10_000  # characters of a template
MAX_BRACKETS = 60

_ALLOWED_NODES = (
    nodes.Template,
    nodes.Output,
    nodes.TemplateData,
    nodes.If,
    nodes.For,
    nodes.Assign,
    nodes.Const,
    nodes.Tuple,
    nodes.List,
    nodes.Dict,
    nodes.Pair,
    nodes.Keyword,
    nodes.Name,
    nodes.Getattr,
    nodes.Getitem,
    nodes.Slice,
    nodes.Call,
    nodes.Filter,
    nodes.Test,
    nodes.CondExpr,
    nodes.BinExpr,
    nodes.UnaryExpr,
    nodes.Compare,
    nodes.Operand,
    nodes.Concat,
)


class TooCostly(Exception):  # noqa: N818 (the name says it)
    """The template would take too long or too much memory."""


class Forbidden(Exception):  # noqa: N818
    """The template uses a part of Jinja that recipes do not have."""

    def __init__(self, message: str, help: str | None = None) -> None:
        super().__init__(message)
        self.help = help


def check_size(text: str) -> None:
    if len(text) > MAX_TEXT:
        raise TooCostly(f"this template is longer than {MAX_TEXT:,} characters")
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    if deepest > MAX_BRACKETS:
        raise TooCostly(f"this template has more than {MAX_BRACKETS} brackets inside each other")


def check(tree: nodes.Template) -> None:
    """Raises Forbidden for what recipes do not have."""
    for node in tree.find_all(nodes.Node):
        if not isinstance(node, _ALLOWED_NODES):
            word = type(node).__name__.lower()
            raise Forbidden(f"recipes do not have Jinja's `{word}`", "use expressions, `if` and `for`")
        if isinstance(node, nodes.For) and node.recursive:
            raise Forbidden("recipes do not have recursive loops")
        if isinstance(node, nodes.Name) and node.name.startswith("_"):
            raise Forbidden(f"`{node.name}`: names that begin with `_` are not for templates")
        if isinstance(node, nodes.Filter) and node.name.startswith("_"):
            raise TemplateSyntaxError(f"No filter named '{node.name}'.", node.lineno)


def only_value(tree: nodes.Template) -> nodes.Expr | None:
    """The expression of a template that is exactly one `{{ }}`; a newline at the end is a block scalar's own."""
    parts = [part for node in tree.body for part in (node.nodes if isinstance(node, nodes.Output) else [node])]
    shown = [part for part in parts if not (isinstance(part, nodes.TemplateData) and not part.data.strip("\n"))]
    only = shown[0] if len(shown) == 1 else None
    return only if isinstance(only, nodes.Expr) and not isinstance(only, nodes.TemplateData) else None


def lead_through_filters(tree: nodes.Template) -> None:
    for loop in list(tree.find_all(nodes.For)):
        size = sum(1 for part in loop.body for _ in part.find_all(nodes.Node)) + 1
        loop.iter = _filter(loop.iter, "_counted", nodes.Const(size))
    for kind in (nodes.Compare, nodes.Operand):
        for side in list(tree.find_all(kind)):
            side.expr = _filter(side.expr, "_seen")  # type: ignore[attr-defined]
    for parent in list(tree.find_all(nodes.Node)):
        for name, value in list(parent.iter_fields()):
            if isinstance(value, list):
                value[:] = [_wrapped(item) for item in value]
            elif isinstance(value, nodes.Node):
                setattr(parent, name, _wrapped(value))


def _wrapped(node: Any) -> Any:
    if isinstance(node, nodes.Concat):
        return _filter(nodes.List(node.nodes, lineno=node.lineno), "_concat")
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        return _filter(node, "_seen")
    return node


def _filter(node: Any, name: str, *arguments: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(arguments), [], None, None, lineno=node.lineno)
