"""Table of functions of torch and numpy that expressions do not support. Each row has the expression function to use
instead, or a hint."""

from __future__ import annotations

import math
from collections.abc import Callable

FUNCTIONS_HERE = {  # with the same arguments
    "absolute": "abs",
    "arctan": "atan",
    "cat": "concat",
    "clip": "clamp",
    "concatenate": "concat",
    "logsigmoid": "log_sigmoid",
    "swapaxes": "transpose",
    "swish": "silu",
    "vector_norm": "norm",
}
BOUNDS = {"max": "min", "amax": "min", "min": "max", "amin": "max"}
"""Comparison functions -> the bound of `clamp` (`min` or `max`) that replaces them when one operand is a number."""

_NO_SIZES = "expressions cannot read sizes: write the number, or `{{ vars.NAME }}`"
_NO_MAKERS = "a tensor is made from another: `ones_like(x)`, `cumsum(ones_like(x), dim=1) - 1` counts 0, 1, 2 along it"
_NOT_THERE = "there is no such function; a layer of a plugin can do it"
NOTES = {
    **dict.fromkeys(("len", "shape", "size", "numel", "ndim", "dim"), _NO_SIZES),
    **dict.fromkeys(
        ("arange", "empty", "eye", "full", "linspace", "ones", "range", "tensor", "zeros", "diag", "tril", "triu"),
        _NO_MAKERS,
    ),
    **dict.fromkeys(("argsort", "bincount", "cumprod", "nonzero", "sort", "unique"), _NOT_THERE),
    "scatter": "write `sum(one_hot(index, SIZE) * unsqueeze(x, -1), dim=-2)`",
    **dict.fromkeys(
        ("rand", "randn", "normal", "randint"), "numbers are drawn in the shape of a tensor: `randn_like(x)`"
    ),
    **dict.fromkeys(("einsum", "bmm", "mm", "tensordot"), "write `x @ y`, with `transpose` and `unsqueeze` around it"),
    "view": "write `reshape(x, B, ...)`: the batch is `B`",
    "add": "write `x + y`",
    "div": "write `x / y`",
    "dot": "write `sum(x * y, dim=-1)`",
    "eq": "write `x == y`",
    "logical_and": "write `x & y`",
    "logical_not": "write `~x`",
    "logical_or": "write `x | y`",
    "mul": "write `x * y`",
    "multiply": "write `x * y`",
    "pow": "write `x ** 2`",
    "power": "write `x ** 2`",
    "sub": "write `x - y`",
    "subtract": "write `x - y`",
    "type": "write `float(x)`, `int(x)` or `bool(x)`",
    "to": "write `float(x)`, `int(x)` or `bool(x)`",
    "astype": "write `float(x)`, `int(x)` or `bool(x)`",
    "item": "a value of the batch is not a number here",
    "numpy": "expressions have only tensors",
    "contiguous": "remove it: nothing here depends on it",
    "clone": "remove it: nothing is changed in place",
    "T": "write `transpose(x, 1, 2)`",
    "t": "write `transpose(x, 1, 2)`",
}


def instead_of_constant(name: str, value: float | bool) -> str | None:
    """Return a hint on what to write instead of a call of the function `name` with the constant `value`: for `sqrt(2)`,
    the number 1.41421. Return None if there is no such hint."""
    if name in BOUNDS:
        return f"write `clamp(x, {BOUNDS[name]}={value})`"
    plain: dict[str, Callable[[float], float]] = {"abs": abs, "round": round}
    compute: Callable[[float], float] | None = getattr(math, name, None) or plain.get(name)
    try:
        return None if compute is None else f"write the number, {compute(value):.6g}"
    except (TypeError, ValueError, OverflowError):
        return None


def layer_called(name: str) -> str | None:
    """Return the layer type for a name that is written in another way, such as `layer_norm` for `LayerNorm`: case and
    `_` are ignored. Return None if there is none."""
    from declarative_train.components.layers import LAYERS

    letters = name.lower().replace("_", "")
    return next((each for each in LAYERS if each.replace("_", "") == letters), None)
