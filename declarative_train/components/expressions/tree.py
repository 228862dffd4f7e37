"""The tree that an expression is read into, and what is wrong with one that cannot be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple


class Constant(NamedTuple):
    value: int | float | bool
    offset: int
    length: int


class Reference(NamedTuple):
    """An edge as typed: `mu`, `lstm.hidden`, `layers.3`."""

    text: str
    offset: int
    length: int


class Vector(NamedTuple):
    """A list of numbers beside a tensor, along its channel dimension: dimension 1 of (B, C, H, W) and of all that has
    more dimensions, else the last."""

    values: tuple[int | float, ...]
    offset: int
    length: int


class Operation(NamedTuple):
    """A function or an operator by its name in `functions.py`; `options` are all arguments that are not operands."""

    name: str
    operands: tuple[Term, ...]
    options: Mapping[str, object]
    offset: int
    length: int


class Value(NamedTuple):
    """A list in an argument's place, while the call is being read."""

    items: tuple[Term, ...]
    offset: int
    length: int


Term = Constant | Vector | Reference | Operation

BATCH = "B"
"""Dimension 0 where a shape is written, as the plan prints it."""


def call_of(operation: str, names: Iterable[str]) -> Operation:
    """An operation on these names, as nobody typed it."""
    return Operation(operation, tuple(Reference(name, 0, 0) for name in names), {}, 0, 0)


ExpressionRule = Literal["syntax", "form", "function", "arguments", "batch", "shapes"]
"""syntax: cannot be read. form: Python that expressions do not have. function: no such function. arguments: not what
the function takes. batch: dimension 0 indexed, reduced or moved, or `B` where no shape begins. shapes: torch refuses
the tensors (only `infer`)."""


class ExpressionError(Exception):
    """`offset` and `length` in characters of the expression's text; `help` is one hint; `instead`: a word of it,
    and the one to write in its place."""

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
