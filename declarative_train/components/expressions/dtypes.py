"""The dtype of an expression's result, and the range of its integers, from those of its edges; without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from declarative_train.components.expressions.functions import FUNCTIONS, INDEX, OPERATORS, Function
from declarative_train.components.expressions.grammar import Expression
from declarative_train.components.expressions.tree import Constant, Operation, Reference, Term
from declarative_train.terms.tensor_spec import FLOATING, DType, TensorSpec

_INTEGERS = ("int8", "int16", "int32", "int64")
_BITS = {"float16": 16, "bfloat16": 16, "float32": 32, "float64": 64}


def result_dtype(expression: Expression, edges: Mapping[str, TensorSpec]) -> tuple[DType, int | None]:
    """The dtype, and n when every value is known to lie in 0..n-1. `edges` has an entry for each name."""
    dtype, num_values = _of(expression.root, edges)
    return cast(DType, dtype), num_values if dtype not in FLOATING and dtype != "bool" else None


def _of(term: Term, edges: Mapping[str, TensorSpec]) -> tuple[str, int | None]:
    """For a constant: its kind (`bool`, `integer`, `number`), and for whole numbers from 0 the range it fits in."""
    if isinstance(term, Constant):
        kind = "bool" if isinstance(term.value, bool) else "integer" if isinstance(term.value, int) else "number"
        return kind, int(term.value) + 1 if kind == "integer" and term.value >= 0 else None
    if isinstance(term, Reference):
        return edges[term.text].dtype, edges[term.text].num_values
    operands = [_of(operand, edges) for operand in term.operands]
    if term.name == INDEX:
        return operands[0]
    function = FUNCTIONS[term.name] if term.name in FUNCTIONS else OPERATORS[term.name]
    return _dtype(function, term, operands), _range(function, term, operands)


def _dtype(function: Function, term: Operation, operands: list[tuple[str, int | None]]) -> str:
    if function.dtype in ("bool", "int64"):
        return function.dtype
    if function.dtype == "float":
        return "float32"
    deciding = _deciding(function, operands)
    found = deciding[0][0]
    for kind, _ in deciding[1:]:
        found = promoted(found, kind)
    found = {"number": "float32", "integer": "int64"}.get(found, found)
    if any(isinstance(value, float) for value in term.options.values()) and term.name == "clamp":
        found = promoted(found, "number")
    if function.dtype == "floating" and found not in FLOATING:
        return "float32"
    if function.dtype == "accumulated" and found not in FLOATING:
        return "int64"
    return found


def _deciding(function: Function, operands: list[tuple[str, int | None]]) -> list[tuple[str, int | None]]:
    if not function.promotes:
        return operands
    tensors = [p.name for p in function.parameters if p.kind in ("tensor", "value")]
    return [operand for name, operand in zip(tensors, operands, strict=True) if name in function.promotes]


def _range(function: Function, term: Operation, operands: list[tuple[str, int | None]]) -> int | None:
    if term.name == "one_hot":
        return 2
    if not function.keeps_range:
        return None
    ranges = [num_values for _, num_values in _deciding(function, operands)]
    known = [num_values for num_values in ranges if num_values is not None]
    return max(known) if known and len(known) == len(ranges) else None


def promoted(a: str, b: str) -> str:
    """torch's promotion of two tensors, or of a tensor and a Python number (`bool`, `integer`, `number`)."""
    for kind, other in ((a, b), (b, a)):
        if kind == "integer":
            return "int64" if other in ("bool", "integer") else other
        if kind == "number":
            return other if other in FLOATING else "number" if other in ("integer", "number") else "float32"
    if a == b:
        return a
    if a in FLOATING or b in FLOATING:
        if not (a in FLOATING and b in FLOATING):
            return a if a in FLOATING else b
        if _BITS[a] == _BITS[b]:
            return "float32"  # float16 with bfloat16
        return a if _BITS[a] > _BITS[b] else b
    if "bool" in (a, b):
        return b if a == "bool" else a
    if "uint8" in (a, b):
        other = b if a == "uint8" else a
        return "int16" if other == "int8" else other
    return _INTEGERS[max(_INTEGERS.index(a), _INTEGERS.index(b))]
