"""Execution of expressions: as calls in a torch.fx graph, or on real or meta tensors, which finds shape errors."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from declarative_train.components.expressions.functions import FUNCTIONS, INDEX, OPERATORS, Function
from declarative_train.components.expressions.grammar import Expression
from declarative_train.components.expressions.samples import vector
from declarative_train.components.expressions.shape_errors import ADDS_A_DIMENSION, shape_error
from declarative_train.components.expressions.tree import Constant, ExpressionError, Operation, Reference, Term, Vector

if TYPE_CHECKING:
    import torch
    from torch import fx

VECTOR = "a vector"  # name of the operation that makes a tensor of a list of numbers


def emit(
    expression: Expression,
    graph: fx.Graph,
    names: Mapping[str, fx.Node],
    draw: Callable[[str, int], Callable[..., Any]] | None = None,
) -> fx.Node:
    """Add the calls of an expression to the fx graph `graph`, and return the fx node of the result. `names`: a dict
    from each name in `expression.names` to its fx node.

    `draw(name, number)`: returns the function that replaces the random function `name`. `number`: position of the call
    among the random calls of the expression, from 0. If `draw` is None, random functions are called as they are.
    """
    num_drawn = itertools.count()

    def call(operation: Operation, target: Callable[..., Any], operands: list[Any]) -> Any:
        if draw is not None and operation.name in FUNCTIONS and FUNCTIONS[operation.name].random:
            return graph.call_function(draw(operation.name, next(num_drawn)), tuple(operands))
        if operation.name == VECTOR:
            return graph.call_function(target, tuple(operands))
        if operation.name == INDEX:
            return graph.call_function(target, (operands[0], operation.options["index"]))  # type: ignore[arg-type]
        return graph.call_function(target, tuple(operands), dict(operation.options))  # type: ignore[arg-type]

    found: fx.Node = _visit(expression.root, names, call)
    return found


def infer(expression: Expression, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the result of an expression on real or meta tensors (B, ...). `tensors`: the tensor for each name. Raises
    ExpressionError, with the position of the operation, if an operation does not accept its tensors. It is also raised
    if a negative `dim` means dimension 0, the batch."""

    def call(operation: Operation, target: Callable[..., Any], operands: list[Any]) -> Any:
        if operation.name == VECTOR:
            return _place_vector(operation, lambda: target(*operands))
        if operation.name == INDEX:
            return _attempt(operation, operands[:1], lambda: target(operands[0], operation.options["index"]))
        _keep_the_batch(operation, operands)
        _keep_to_classes(operation, operands)
        return _attempt(operation, operands, lambda: target(*operands, **operation.options))

    found: torch.Tensor = _visit(expression.root, tensors, call)
    return found


def _visit(
    term: Term, names: Mapping[str, Any], call: Callable[[Operation, Callable[..., Any], list[Any]], Any]
) -> Any:
    if isinstance(term, Constant):
        return term.value
    if isinstance(term, Reference):
        return names[term.text]
    if isinstance(term, Vector):
        return term
    operands = [_visit(operand, names, call) for operand in term.operands]
    if any(isinstance(operand, Vector) for operand in operands):
        tensor = next(x for x, of in zip(operands, term.operands, strict=True) if isinstance(of, Reference | Operation))
        operands = [
            call(Operation(VECTOR, (), {"values": x.values}, x.offset, x.length), vector, [x.values, tensor])
            if isinstance(x, Vector)
            else x
            for x in operands
        ]
    return call(term, target_of(term.name), operands)


def target_of(name: str) -> Callable[..., Any]:
    """Return the callable that computes the operation `name`."""
    if name == INDEX:
        path = "operator.getitem"
    else:
        path = _function(name).target
    module, _, attribute = path.rpartition(".")
    target: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return target


def _function(name: str) -> Function:
    return FUNCTIONS[name] if name in FUNCTIONS else OPERATORS[name]


def _keep_the_batch(operation: Operation, operands: list[Any]) -> None:
    rank = max((operand.ndim for operand in operands if hasattr(operand, "ndim")), default=0)
    rank += operation.name in ADDS_A_DIMENSION
    for parameter in _function(operation.name).parameters:
        if parameter.kind not in ("dim", "dims", "order") or parameter.name not in operation.options:
            continue
        value = operation.options[parameter.name]
        if operation.name == "flatten" and rank == 1 and operation.options == {"start_dim": 1, "end_dim": -1}:
            continue  # flattening one number per sample gives (B, 1)
        for dim in value if isinstance(value, tuple) else (value,):
            if isinstance(dim, int) and dim + rank == 0:
                shape = "(B)" if rank == 1 else f"a tensor of {rank} dimensions"
                message = f"`{parameter.name}` {dim} of {shape} is dimension 0, the batch"
                raise ExpressionError(
                    message, operation.offset, operation.length, "one sample has no such dimension", "batch"
                )


def _keep_to_classes(operation: Operation, operands: list[Any]) -> None:
    """Raise an error if `operation` is a `one_hot` whose operand has no integer dtype, or has values outside of 0 to
    `num_classes` - 1. Values are checked only on the CPU, because reading them from a GPU would make the host wait."""
    if operation.name != "one_hot":
        return
    (x,), size = operands, operation.options.get("num_classes")
    if x.is_floating_point() or str(x.dtype) == "torch.bool":
        raise shape_error(operation, operands, TypeError("another dtype"))
    if x.device.type == "cpu" and x.numel() and isinstance(size, int) and not 0 <= int(x.min()) <= int(x.max()) < size:
        raise shape_error(operation, operands, ValueError("outside of the classes"))


def _place_vector(operation: Operation, run: Callable[[], Any]) -> Any:
    try:
        return run()
    except (ValueError, RuntimeError, OverflowError) as found:
        hint = "a vector is along dimension 1 of (B, C, H, W) and of tensors with more dimensions, else along the last"
        raise ExpressionError(str(found), operation.offset, operation.length, hint, "shapes") from None


def _attempt(operation: Operation, operands: list[Any], run: Callable[[], Any]) -> Any:
    try:
        return run()
    except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError, ZeroDivisionError) as found:
        raise shape_error(operation, operands, found) from None
