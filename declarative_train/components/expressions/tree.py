"""Nodes of the tree of a parsed expression, and the error for a text that cannot be parsed."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Literal, NamedTuple


class Constant(NamedTuple):
    value: int | float | bool
    offset: int
    length: int


class Reference(NamedTuple):
    """Name of a value in the model graph, as typed: `mu`, `lstm.hidden`, `layers.3`."""

    text: str
    offset: int
    length: int


class Vector(NamedTuple):
    """List of numbers as an operand, one for each channel of the other operand. The channel dimension is
    dimension 1 for tensors with four or more dimensions, such as (B, C, H, W), else the last dimension.
    """

    values: tuple[int | float, ...]
    offset: int
    length: int


class Operation(NamedTuple):
    """Call of a function or operator. `name`: its name in `functions.py`. `operands`: its tensor arguments. `options`:
    all other arguments by name."""

    name: str
    operands: tuple[Term, ...]
    options: Mapping[str, object]
    offset: int
    length: int


class Value(NamedTuple):
    """List in brackets that is an argument of a call, such as a shape. It exists only while the call is parsed. Then
    its items become arguments of the `Operation`. `offset`, `length`: its position in the text."""

    items: tuple[Term, ...]
    offset: int
    length: int


Term = Constant | Vector | Reference | Operation

BATCH = "B"
"""Batch dimension in a shape, as the plan prints it."""


def call_of(operation: str, names: Iterable[str]) -> Operation:
    """Return the operation named `operation`, with the references `names` as its operands. It is for expressions that
    dtrain makes itself."""
    return Operation(operation, tuple(Reference(name, 0, 0) for name in names), {}, 0, 0)


def is_made_by(term: Term, functions: Container[str]) -> bool:
    """Return whether an expression calls no other functions than `functions`."""
    if not isinstance(term, Operation):
        return True
    return term.name in functions and all(is_made_by(each, functions) for each in term.operands)


ExpressionRule = Literal["syntax", "form", "function", "arguments", "batch", "shapes"]
"""Kinds of errors. syntax: does not parse. form: Python syntax that expressions do not support. function: unknown
function. arguments: wrong arguments. batch: dimension 0 indexed, reduced or moved, or `B` not at the start of a shape.
shapes: torch rejects the tensors (only `infer`)."""


class ExpressionError(Exception):
    """Error in the text of an expression. `offset` and `length`: position in the text, in characters. `help`: a hint
    for the user. `instead`: a word of the text and its replacement, for an automatic fix."""

    def __init__(
        self,
        message: str,
        offset: int,
        length: int = 1,
        help: str | None = None,
        rule: ExpressionRule = "syntax",
        instead: tuple[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.offset = offset
        self.length = max(1, length)
        self.help = help
        self.rule: ExpressionRule = rule
        self.instead = instead
