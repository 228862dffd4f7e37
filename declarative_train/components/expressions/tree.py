"""The tree that an expression is read into."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Constant(NamedTuple):
    value: int | float | bool
    offset: int
    length: int


class Reference(NamedTuple):
    """An edge as typed: `mu`, `lstm.hidden`, `layers.3`."""

    text: str
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


Term = Constant | Reference | Operation
