"""The tree that an expression is read into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Constant:
    value: int | float | bool
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Reference:
    """An edge as typed: `mu`, `lstm.hidden`, `layers.3`."""

    text: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Operation:
    """A function or an operator by its name in `functions.py`; `options` are all arguments that are not operands."""

    name: str
    operands: tuple[Term, ...]
    options: Mapping[str, object]
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Value:
    """A list in an argument's place, while the call is being read."""

    items: tuple[Term, ...]
    offset: int
    length: int


Term = Constant | Reference | Operation
