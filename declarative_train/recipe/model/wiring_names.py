"""The names that a recipe gives, judged, and the grammar of references to them."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

from declarative_train.diagnostics.diagnostic import Diagnostic
from declarative_train.recipe.checks.blocks import bad_name, reserved_name
from declarative_train.source.node import Scalar
from declarative_train.terms.names import NAME, is_name
from declarative_train.terms.span import Span

REUSE = "reuse"

_REFERENCE = re.compile(
    rf"(?P<name>{NAME})(?:\.(?P<copy>\d+))?(?:\.(?P<output>{NAME}))?(?P<more>(?:\.[a-z0-9_]+)*)", re.ASCII
)


def check_name(key: Scalar, what: str, reserved: Collection[str] = ()) -> Diagnostic | None:
    """What is wrong with the name that a key gives to `what` ("a node")."""
    if not isinstance(key.value, str) or not is_name(key.text):
        return bad_name(key.span, key.text, what)
    return reserved_name(key.span, key.text, what) if key.text in reserved else None


class Edge(NamedTuple):
    """A reference as typed, `node[.copy][.output]`. `is_default`: nobody typed it, it is the node above."""

    name: str
    copy: int | None
    output: str | None
    text: str
    span: Span
    is_default: bool = False
    below: str = ""  # parts behind the output, which no reference has: `.attn` of `gpt.out.attn`


def read_reference(text: str, span: Span) -> Edge | None:
    """None when the text has not the form of a reference."""
    match = _REFERENCE.fullmatch(text)
    if match is None or (match["copy"] and len(match["copy"]) > 9):
        return None
    copy = None if match["copy"] is None else int(match["copy"])
    return Edge(match["name"], copy, match["output"], text, span, below=match["more"])
