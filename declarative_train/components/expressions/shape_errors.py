"""Error messages for operations that do not accept their tensors. Shapes in messages have B for the batch, and
functions have the names that the recipe uses.

A message of torch mentions internal batch sizes, and functions that the recipe does not call. So it is shown only as a
hint, and only if there is no better text.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from declarative_train.components.expressions.functions import FUNCTIONS, INDEX, OPERATORS
from declarative_train.components.expressions.tree import ExpressionError, Operation, Reference

if TYPE_CHECKING:
    import torch

ADDS_A_DIMENSION = frozenset({"unsqueeze", "stack"})

_OF_DTYPES = re.compile(
    r"not implemented for|only implemented|boolean tensor|dtype|scalar type|integral|floating point"
)
_OUT_OF_BOUNDS = re.compile(r"index (-?\d+) is out of bounds for dimension (\d+) with size (\d+)")


def shape_error(operation: Operation, operands: list[Any], problem: Exception) -> ExpressionError:
    """Return the error for an operation in which torch raised `problem`. `operands`: the tensors (B, ...) and
    numbers on which the operation was called.
    """
    said = str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__
    tensors = [operand for operand in operands if hasattr(operand, "ndim")]
    reason = _reason(operation, tensors, said) if tensors else None
    dtypes = reason is None and _OF_DTYPES.search(said) is not None
    shown = [_format_operand(term, operand, dtypes) for term, operand in zip(operation.operands, operands, strict=True)]
    what = "this slice does not fit" if operation.name == INDEX else f"`{operation.name}` does not take"
    message = f"{what} {', '.join(shown)}" + (f": {reason}" if reason else "")
    if "ZeroDivisionError" in said:
        message, dtypes = f"`{operation.name}` divides by zero", True
    hint = None if reason or dtypes else f"torch says: {said[:1].lower()}{said[1:]}"
    return ExpressionError(message, operation.offset, operation.length, hint, rule="shapes")


def _format_operand(term: Any, operand: Any, dtypes: bool) -> str:
    if not hasattr(operand, "ndim"):
        return str(operand)
    name = f"`{term.text}` " if isinstance(term, Reference) else ""
    return f"{name}{shape_of(operand)}" + (f" {str(operand.dtype).removeprefix('torch.')}" if dtypes else "")


def shape_of(tensor: torch.Tensor) -> str:
    return f"({', '.join(['B', *map(str, tensor.shape[1:])])})" if tensor.ndim else "()"


def _reason(operation: Operation, tensors: list[torch.Tensor], said: str) -> str | None:
    if operation.name == INDEX:
        return _explain_index(operation.options["index"], tensors[0], said)
    if operation.name == "one_hot" and "outside" in said:
        least, greatest, classes = int(tensors[0].min()), int(tensors[0].max()), operation.options["num_classes"]
        return f"its values are {least} to {greatest}, but {classes} classes are 0 to {int(str(classes)) - 1}"
    rank = max(tensor.ndim for tensor in tensors)
    return (
        _explain_dims(operation, rank)
        or _explain_squeeze(operation, tensors[0])
        or _explain_topk(operation, tensors[0])
        or _explain_sizes(operation, tensors[0])
        or (_explain_product(tensors) if operation.name in ("@", "matmul") else None)
        or (
            _explain_list(tensors, operation) if operation.name in ("concat", "stack") else _explain_pair(tensors, rank)
        )
    )


def _explain_index(index: Any, tensor: torch.Tensor, said: str) -> str | None:
    if isinstance(index, tuple) and sum(part is not None and part is not Ellipsis for part in index) > tensor.ndim:
        return f"it has, without the batch, {tensor.ndim - 1} dimension{'s' * (tensor.ndim != 2)}"
    if found := _OUT_OF_BOUNDS.search(said):
        return f"there is no {found[1]} in dimension {found[2]}, whose size is {found[3]}"
    return None


def _explain_dims(operation: Operation, rank: int) -> str | None:
    """Return the message for a `dim` that does not exist, or for a `permute` that does not name all dimensions. Return
    None for other mistakes. `rank`: number of dimensions of the operand, with the batch."""
    ranks = rank + (operation.name in ADDS_A_DIMENSION)
    function = FUNCTIONS.get(operation.name) or OPERATORS[operation.name]
    for parameter in function.parameters:
        value = operation.options.get(parameter.name)
        if parameter.kind not in ("dim", "dims", "order") or value is None:
            continue
        dims = value if isinstance(value, tuple) else (value,)
        wrong = next((dim for dim in dims if isinstance(dim, int) and not -ranks <= dim < ranks), None)
        if wrong is not None:
            last = ranks - 1
            there = f"they are 1 to {last}" if last > 1 else "the only one is 1" if last else "there is the batch only"
            return f"it has no dimension {wrong}, {there}"
        if parameter.kind == "order" and len(dims) != rank:
            return "name every dimension, the batch as 0"
    return None


def _explain_sizes(operation: Operation, tensor: torch.Tensor) -> str | None:
    sizes = operation.options.get("size", operation.options.get("shape"))
    if operation.name not in ("expand", "reshape") or not isinstance(sizes, tuple):
        return None
    asked = f"({', '.join(map(str, sizes))})"
    if operation.name == "expand":
        return f"only sizes of 1 can be expanded, but the target is {asked}"
    return f"its {math.prod(tensor.shape[1:]):,} numbers per sample cannot be arranged as {asked}"


def _explain_squeeze(operation: Operation, tensor: torch.Tensor) -> str | None:
    if operation.name != "squeeze":
        return None
    dim = int(str(operation.options["dim"]))
    return f"dimension {dim} has size {tensor.shape[dim]}, not 1"


def _explain_topk(operation: Operation, tensor: torch.Tensor) -> str | None:
    if operation.name not in ("topk", "topk_indices"):
        return None
    dim, k = int(str(operation.options["dim"])), int(str(operation.options["k"]))
    size = tensor.shape[dim]
    return None if 1 <= k <= size else f"dimension {dim} has {size} values, of which there are no {k} greatest"


def _explain_product(tensors: list[torch.Tensor]) -> str | None:
    first, second = tensors[0], tensors[-1]
    if second.ndim == 2:
        return "the second is not a matrix of each sample; `sum(x * y, dim=-1)` multiplies vectors"
    if first.shape[-1] != second.shape[-2]:
        return f"the last size of the first, {first.shape[-1]}, is not the second last of the second"
    return None


def _explain_list(tensors: list[torch.Tensor], operation: Operation) -> str | None:
    if operation.name == "stack":
        return "their shapes must be equal" if len({tensor.shape for tensor in tensors}) > 1 else None
    if len({tensor.ndim for tensor in tensors}) > 1:
        return "they have different numbers of dimensions"
    return f"they may differ in dimension {operation.options.get('dim', 1)} only"


def _explain_pair(tensors: list[torch.Tensor], rank: int) -> str | None:
    """Return an error message if the tensors cannot be broadcast to one shape, otherwise None. The message names the
    last dimension that does not match. `rank`: number of dimensions of the largest tensor."""
    for dim in range(1, rank + 1):
        sizes = dict.fromkeys("B" if dim == t.ndim else str(t.shape[-dim]) for t in tensors if dim <= t.ndim)
        several = [size for size in sizes if size != "1"]
        if len(several) > 1:
            return f"sizes {' and '.join(several)} of dimension {rank - dim} do not match"
    return None
