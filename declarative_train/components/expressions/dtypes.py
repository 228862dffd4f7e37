"""Dtype and value range of the result of an expression, computed without torch from those of its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import cast

from declarative_train.components.expressions.functions import FUNCTIONS, INDEX, OPERATORS, Function
from declarative_train.components.expressions.grammar import Expression
from declarative_train.components.expressions.ranges import ANY, UNKNOWN, KnownRange, of_operation, of_vector
from declarative_train.components.expressions.tree import (
    Constant,
    ExpressionError,
    Operation,
    Reference,
    Term,
    Vector,
)
from declarative_train.core.tensor_spec import FLOATING, DType, TensorSpec, interval_in_words

_INTEGERS = ("int8", "int16", "int32", "int64")
_BITS = {"float16": 16, "bfloat16": 16, "float32": 32, "float64": 64}


def result_spec(expression: Expression, edges: Mapping[str, TensorSpec], shape: tuple[int, ...]) -> TensorSpec:
    """Return the TensorSpec of the result of an expression: the given `shape` (per sample), with the dtype and the
    range that follow from the operands. `edges`: spec of each name in the expression."""
    dtype, known = _infer(expression.root, edges)
    return with_known(TensorSpec(shape, cast(DType, dtype)), known)


def fill_num_classes(
    expression: Expression, edges: Mapping[str, TensorSpec], occurring: Mapping[str, TensorSpec] | None = None
) -> Expression:
    """Return the expression with `num_classes` added to each `one_hot` that lacks it: its greatest possible input, plus
    1. Raises ExpressionError if the range of an input is unknown, or if values are not below `num_classes`.

    `edges`: spec of each name in the expression. `occurring`: the same specs, with the range of the values in the data.
    """
    written: list[tuple[int, str]] = []

    def visit(term: Term) -> Term:
        if not isinstance(term, Operation):
            return term
        operands = tuple(map(visit, term.operands))
        if term.name != "one_hot" or "num_classes" in term.options:
            if term.name == "one_hot" and isinstance(operands[0], Reference):
                _keep_to_classes(term, (occurring or edges)[operands[0].text])
            return term if operands == term.operands else term._replace(operands=operands)
        greatest = _infer(operands[0], edges)[1].hull[1]
        if not isfinite(greatest):
            message = "`one_hot` needs `num_classes`: the range of its numbers is not known"
            raise ExpressionError(message, term.offset, term.length, f"write `one_hot(x, {10})`", "arguments")
        size, end = max(int(greatest) + 1, 1), term.offset + term.length - 1
        comma = "" if expression.text[:end].rstrip().endswith(",") else ", "
        written.append((end, f"{comma}num_classes={size}"))
        return term._replace(operands=operands, options={"num_classes": size})

    root, text = visit(expression.root), expression.text
    for end, size in sorted(written, reverse=True):
        text = text[:end] + size + text[end:]
    return expression._replace(root=root, text=text) if written else expression


def _keep_to_classes(one_hot: Operation, x: TensorSpec) -> None:
    size, (low, high) = int(str(one_hot.options["num_classes"])), x.interval or (0, 0)
    if low < 0 or high >= size:
        what = f"{interval_in_words((low, high))}, but {size} classes are 0 to {size - 1}"
        message = f"`one_hot` does not take {x}: its values are {what}"
        raise ExpressionError(message, one_hot.offset, one_hot.length, None, "shapes")


def read_range(spec: TensorSpec) -> KnownRange:
    return KnownRange(spec.intervals or (((0, 1) if spec.dtype == "bool" else ANY),), spec.shape)


def with_known(spec: TensorSpec, known: KnownRange) -> TensorSpec:
    columns = known.columns if spec.shape and len(known.columns) == spec.shape[-1] else (known.hull,)
    return spec.between(columns)


def _infer(term: Term, edges: Mapping[str, TensorSpec]) -> tuple[str, KnownRange]:
    """Return the dtype and value range of `term`, a node in the tree of an expression. The dtype of a constant is
    `bool`, `integer` or `number`. `edges`: spec of each name in the expression."""
    if isinstance(term, Constant):
        kind = "bool" if isinstance(term.value, bool) else "integer" if isinstance(term.value, int) else "number"
        return kind, KnownRange(((term.value, term.value),), ())
    if isinstance(term, Vector):
        return "integer" if all(isinstance(value, int) for value in term.values) else "number", of_vector(term.values)
    if isinstance(term, Reference):
        return edges[term.text].dtype, read_range(edges[term.text])
    operands = [_infer(operand, edges) for operand in term.operands]
    known = [each for _, each in operands]
    tensor = next((each for each, of in zip(known, term.operands, strict=True) if not isinstance(of, Vector)), UNKNOWN)
    known = [
        of_vector(of.values, tensor.shape) if isinstance(of, Vector) else each
        for each, of in zip(known, term.operands, strict=True)
    ]
    if term.name == INDEX:
        return operands[0][0], of_operation(INDEX, term.options, known, operands[0][0])
    function = FUNCTIONS[term.name] if term.name in FUNCTIONS else OPERATORS[term.name]
    dtype = _dtype(function, term, [kind for kind, _ in operands])
    return dtype, of_operation(term.name, term.options, known, dtype)


def _dtype(function: Function, term: Operation, operands: list[str]) -> str:
    if function.dtype in ("bool", "int64"):
        return function.dtype
    if function.dtype == "float":
        return "float32"
    found, *others = _deciding(function, operands)
    for kind in others:
        found = promote(found, kind)
    found = {"number": "float32", "integer": "int64"}.get(found, found)
    if any(isinstance(value, float) for value in term.options.values()) and term.name == "clamp":
        found = promote(found, "number")
    if function.dtype == "floating" and found not in FLOATING:
        return "float32"
    if function.dtype == "accumulated" and found not in FLOATING:
        return "int64"
    return found


def _deciding(function: Function, operands: list[str]) -> list[str]:
    if not function.promotes:
        return operands
    tensors = [p.name for p in function.parameters if p.kind in ("tensor", "value")]
    return [operand for name, operand in zip(tensors, operands, strict=True) if name in function.promotes]


def promote(a: str, b: str) -> str:
    """Return the dtype that torch gives to the result of an operation on operands with the dtypes `a` and `b`. A Python
    number has no dtype; for it, write `integer` or `number`, or `bool` for True and False."""
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
