"""Interval arithmetic: the value range of an operation's result, from the ranges of its operands.

A range contains all values that can occur, except nan, because a run stops at values that are not finite. Each column
(entry of the last dimension) has its own interval if its range is known, for example if each column holds another
category. R. E. Moore, Interval Analysis, 1966."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from declarative_train.components.expressions.functions import FUNCTIONS, INDEX
from declarative_train.core.tensor_spec import FLOATING, Interval

INF = math.inf
ANY: Interval = (-INF, INF)
_MOST_COLUMNS = 4096
_ROUNDING = {"float64": 1e-9, "float32": 1e-6, "float16": 2e-3, "bfloat16": 2e-2}  # rounding error of some operations
_INTEGERS = {
    **{f"int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)},
    "uint8": (0, 255),
}
_FIXED: dict[str, Interval] = {
    **dict.fromkeys(("all", "any", "isfinite", "isnan", "bool", "one_hot", "ones_like", "rand_like"), (0, 1)),
    **dict.fromkeys(("!=", "<", "<=", "==", ">", ">=", "sigmoid", "softmax"), (0, 1)),
    **dict.fromkeys(("cosine_similarity", "normalize", "sin", "cos", "tanh", "erf", "sign"), (-1, 1)),
    **dict.fromkeys(("exp", "norm", "softplus", "sqrt", "std", "var", "rsqrt"), (0, INF)),
    **dict.fromkeys(("log_sigmoid", "log_softmax"), (-INF, 0)),
    "atan": (-1.6, 1.6),
    "zeros_like": (0, 0),
}
_KEEP = frozenset({"detach", "float", "pos"})  # element by element, values unchanged
_HULL = frozenset({"amax", "amin", "expand", "flatten", "flip", "max", "mean", "min", "permute", "repeat_interleave",
                   "reshape", "roll", "squeeze", "transpose", "unsqueeze"})  # fmt: skip
_MOVES = frozenset({"expand", "reshape", "unsqueeze"})
_GROWING: dict[str, Callable[[float], float]] = {
    "ceil": lambda x: math.ceil(x) if math.isfinite(x) else x,
    "floor": lambda x: math.floor(x) if math.isfinite(x) else x,
    "round": lambda x: round(x) if math.isfinite(x) else x,
    "relu": lambda x: max(x, 0),
}


class KnownRange(NamedTuple):
    """Known value range of a tensor. `columns`: one interval for all values, or one for each entry of the last
    dimension. `shape`: shape of one sample of the tensor, None if unknown."""

    columns: tuple[Interval, ...]
    shape: tuple[int, ...] | None = None

    @property
    def hull(self) -> Interval:
        return min(low for low, _ in self.columns), max(high for _, high in self.columns)


UNKNOWN = KnownRange((ANY,))


def of_vector(values: Sequence[float], sample_shape: tuple[int, ...] | None = None) -> KnownRange:
    """Return the value range of `values`, a list of numbers that an expression combines with a tensor. `sample_shape`:
    shape of one sample of the tensor, or None if unknown. For a sample of at most two dimensions, the result has an
    interval for each number. For others (images), or an unknown shape, one interval contains all numbers."""
    if sample_shape is None or len(sample_shape) > 2:
        return KnownRange(((min(values), max(values)),))
    is_as_wide = bool(sample_shape) and sample_shape[-1] == len(values)
    return KnownRange(tuple((value, value) for value in values), () if is_as_wide else None)


def of_operation(name: str, options: Mapping[str, object], operands: Sequence[KnownRange], dtype: str) -> KnownRange:
    """Return the value ranges of the result of the operation `name` on operands with known ranges. `options`: the other
    arguments of the operation. `dtype`: dtype of the result. The ranges allow for integers that overflow and for
    rounding of fractions."""
    if dtype == "bool":
        return KnownRange(((0, 1),))
    found = _of(name, options, operands)
    columns = tuple(_fit_dtype(each, dtype, name) for each in found.columns)
    return KnownRange(columns if len(set(columns)) > 1 else columns[:1], found.shape)


def _of(name: str, options: Mapping[str, object], operands: Sequence[KnownRange]) -> KnownRange:
    first = operands[0]
    if name == INDEX:
        return _index(first, options["index"])
    if name in _FIXED:
        return KnownRange((_FIXED[name],))
    if name in _KEEP or (name in _MOVES and _keeps_columns(name, options, first)):
        return first if name in _KEEP else KnownRange(first.columns)
    if name in _HULL:
        return KnownRange((first.hull,))
    if name in _GROWING:
        return _each(lambda x: (_GROWING[name](x[0]), _GROWING[name](x[1])), first)
    if name in _ONE:
        return _each(_ONE[name], first)
    if name in _TWO:
        return _pair(_TWO[name], first, operands[1])
    if name == "where":
        return _pair(_either, operands[1], operands[2])
    if name == "gather":
        return KnownRange((first.hull,))
    if name in ("concat", "stack"):
        return _join(name, operands, options.get("dim"))
    if name == "clamp":
        low, high = options.get("min"), options.get("max")
        return _each(lambda x: _clamp(x, low, high), first)
    if name == "masked_fill":
        value = float(str(options["value"]))
        return _each(lambda x: _either(x, (value, value)), first)
    if name == "topk":
        return KnownRange((first.hull,))
    if name in ("sum", "cumsum", "argmax", "argmin", "topk_indices"):
        return _over(name, first, options.get("dim"))
    return UNKNOWN


def _each(operation: Callable[[Interval], Interval], x: KnownRange) -> KnownRange:
    return KnownRange(tuple(map(operation, x.columns)), x.shape)


def _keeps_columns(name: str, options: Mapping[str, object], x: KnownRange) -> bool:
    """Return whether the result of an operation on `x` has the same last dimension as `x`, with its entries in the same
    order. `name`: the operation, such as `reshape`. `options`: its arguments that are not tensors."""
    sizes, dim = options.get("shape", options.get("size")), options.get("dim")
    if name == "unsqueeze":
        return x.shape is not None and isinstance(dim, int) and dim not in (-1, len(x.shape) + 1)
    return isinstance(sizes, tuple) and sizes[-1] in (len(x.columns), -1 if name == "expand" else 0)


def _pair(operation: Callable[[Interval, Interval], Interval], a: KnownRange, b: KnownRange) -> KnownRange:
    shape = a.shape if b.shape in (a.shape, ()) else b.shape if a.shape == () else None
    if 1 not in (len(a.columns), len(b.columns)) and len(a.columns) != len(b.columns):
        a, b = KnownRange((a.hull,)), KnownRange((b.hull,))
    width = max(len(a.columns), len(b.columns))
    wide = [each.columns if len(each.columns) == width else each.columns * width for each in (a, b)]
    return KnownRange(tuple(map(operation, *wide)), shape)


def _either(a: Interval, b: Interval) -> Interval:
    return min(a[0], b[0]), max(a[1], b[1])


def _corners(operation: Callable[[float, float], float], a: Interval, b: Interval) -> Interval:
    found = [operation(x, y) for x, y in product(a, b)]
    return min(found), max(found)


def _times(x: float, y: float) -> float:
    return 0 if 0 in (x, y) else x * y


def _divide(a: Interval, b: Interval) -> Interval:
    return ANY if b[0] <= 0 <= b[1] else _corners(lambda x, y: x / y if math.isfinite(y) else 0.0, a, b)


def _floor_divide(a: Interval, b: Interval) -> Interval:
    if b[0] <= 0 <= b[1] or not all(map(math.isfinite, (*a, *b))):
        return ANY
    return _corners(lambda x, y: x // y, a, b)


def _remainder(a: Interval, b: Interval) -> Interval:
    """Return the range of `a % b` for values in the ranges `a` and `b`. As in Python, the result has the sign
    of the divisor.
    """
    if b[0] <= 0 or not math.isfinite(b[1]):
        return ANY
    if a[0] >= 0 and a[1] < b[0]:
        return a
    return 0, (b[1] - 1 if all(isinstance(end, int) for end in (*a, *b)) else b[1])


def _power(a: Interval, b: Interval) -> Interval:
    if b[0] != b[1] or b[0] < 0 or max(abs(a[0]), abs(a[1]), b[0]) > 1e6:
        return ANY
    if b[0] == 2:
        return _square(a)
    return (a[0] ** b[0], a[1] ** b[0]) if a[0] >= 0 else ANY


def _square(a: Interval) -> Interval:
    ends = [_times(end, end) for end in a]
    return (0 if a[0] <= 0 <= a[1] else min(ends)), max(ends)


def _whole(x: Interval) -> Interval:
    return (math.trunc(x[0]), math.trunc(x[1])) if all(map(math.isfinite, x)) else ANY


def _clamp(x: Interval, low: object, high: object) -> Interval:
    ends = x
    if isinstance(low, int | float):
        ends = max(ends[0], low), max(ends[1], low)
    if isinstance(high, int | float):
        ends = min(ends[0], high), min(ends[1], high)
    return ends


_ONE: dict[str, Callable[[Interval], Interval]] = {
    "abs": lambda x: (0 if x[0] <= 0 <= x[1] else min(map(abs, x)), max(map(abs, x))),
    "int": _whole,
    "neg": lambda x: (-x[1], -x[0]),
    "square": _square,
}
_TWO: dict[str, Callable[[Interval, Interval], Interval]] = {
    "%": _remainder,
    "*": lambda a, b: _corners(_times, a, b),
    "**": _power,
    "+": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "-": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "/": _divide,
    "//": _floor_divide,
    "maximum": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "minimum": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
}


def _over(name: str, x: KnownRange, dims: object) -> KnownRange:
    """Return the value range of the result of a reduction of `x` along the dimensions `dims`. `name`: the reduction:
    sum, cumsum, argmax, argmin or topk_indices. The range is unknown if the size of one of these dimensions is
    unknown."""
    asked = dims if isinstance(dims, tuple) else (dims,)
    rank = None if x.shape is None else len(x.shape) + 1
    places = [dim % rank for dim in asked if rank and isinstance(dim, int) and -rank <= dim < rank]
    if x.shape is None or len(places) < len(asked) or 0 in places:
        return UNKNOWN
    size = math.prod(x.shape[place - 1] for place in places)
    low, high = x.hull
    if name in ("argmax", "argmin", "topk_indices"):
        return KnownRange(((0, max(size - 1, 0)),))
    sums = _times(size, low), _times(size, high)
    return KnownRange(((min(low, sums[0]), max(high, sums[1])) if name == "cumsum" else sums,))


def _join(name: str, operands: Sequence[KnownRange], dim: object) -> KnownRange:
    """Return the value ranges of the tensors `operands` after `concat` or `stack` along `dim`. If `dim` is the last
    dimension, each entry along it has its own interval. Otherwise one interval covers all values."""
    low, high = min(each.hull[0] for each in operands), max(each.hull[1] for each in operands)
    together = KnownRange(((low, high),))
    shapes = [each.shape for each in operands]
    if any(shape is None for shape in shapes):
        return together
    ranks = {len(shape or ()) for shape in shapes}
    if len(ranks) > 1 or dim not in (-1, max(ranks) + (name == "stack")):
        return together
    if name == "stack":
        return KnownRange(tuple(each.hull for each in operands))
    columns: list[Interval] = []
    for each in operands:
        width = each.shape[-1] if each.shape else 0
        columns += each.columns if len(each.columns) == width else each.columns * width
        if len(columns) > _MOST_COLUMNS or width == 0:
            return together
    return KnownRange(tuple(columns))


def _index(x: KnownRange, index: object) -> KnownRange:
    """Return the value range of `x[index]`. If `x` has an interval for each entry of its last dimension, the result has
    the intervals of the entries that `index` selects. If it is unknown which entries these are, the result has one
    interval for all values."""
    parts = index if isinstance(index, tuple) else (index,)
    if len(x.columns) == 1:
        return KnownRange(x.columns)
    last, whole = parts[-1], KnownRange((x.hull,))
    taken = sum(part is not None and part is not ... for part in parts)
    if x.shape is None or last is None:
        return whole
    if last is ... or (... not in parts and taken < len(x.shape) + 1):
        return KnownRange(x.columns)
    if isinstance(last, int):
        return KnownRange((x.columns[last],)) if -len(x.columns) <= last < len(x.columns) else whole
    return KnownRange(x.columns[last] or (x.hull,)) if isinstance(last, slice) else whole


def _fit_dtype(x: Interval, dtype: str, name: str) -> Interval:
    if dtype in _INTEGERS:
        low, high = _INTEGERS[dtype]
        return x if low <= x[0] and x[1] <= high else ANY
    if dtype not in FLOATING or name in _FIXED or name in _KEEP or (name in FUNCTIONS and FUNCTIONS[name].keeps_range):
        return x
    wider = _ROUNDING[dtype]
    return x[0] - abs(x[0]) * wider, x[1] + abs(x[1]) * wider
