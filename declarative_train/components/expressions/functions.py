"""Table of the functions and operators that an expression may use: their arguments, torch functions and dtypes.

Arguments have torch's names. Dimension 0 is the batch: a shape must begin with `B` and an order of dimensions with 0,
and no other argument may be dimension 0. All functions are pure except those marked `random`. A layer with the name of
a function computes the same, with the same defaults (`default`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

Kind = Literal["tensor", "value", "tensors", "dim", "dims", "order", "int", "shape", "number", "bool"]
"""Kinds of a parameter. tensor: computed from an edge. value: a tensor, a number, or a list of numbers along the
channel dimension. tensors: one or more (all positional arguments). dim, dims: one or several dimensions except the
batch. order: all dimensions, 0 first. shape: `B` and the sizes of one sample."""

ResultType = Literal["promoted", "floating", "float", "bool", "int64", "accumulated"]
"""Dtype of the result. promoted: torch's promotion of the tensor arguments. floating: the same, but integers become
float32. float: float32. accumulated: integers and bools become int64."""

REQUIRED = object()


class Parameter(NamedTuple):
    name: str
    kind: Kind
    default: object = REQUIRED

    @property
    def required(self) -> bool:
        return self.default is REQUIRED


class Function(NamedTuple):
    """Function or operator of expressions. `target`: dotted path of the torch function, which gets tensors by position
    and all other arguments by name. `keeps_range`: an integer result has no value outside the range of the tensor
    arguments, as with `min`."""

    target: str
    parameters: tuple[Parameter, ...]
    dtype: ResultType = "promoted"
    random: bool = False
    keeps_range: bool = False
    promotes: tuple[str, ...] = ()  # arguments that decide the dtype; empty: all tensors

    @property
    def signature(self) -> str:
        """Parameters as shown to users: `x, dim, keepdim=false`."""
        return ", ".join(_format_parameter(parameter) for parameter in self.parameters)


def _format_parameter(parameter: Parameter) -> str:
    if parameter.kind == "tensors":
        return f"{parameter.name}, ..."
    if parameter.kind == "shape":
        return "B, ..."
    if parameter.kind == "order":
        return "0, ..."
    if parameter.required:
        return parameter.name
    default = str(parameter.default).lower() if isinstance(parameter.default, bool) else parameter.default
    return f"{parameter.name}={default}"


_X = Parameter("x", "tensor")
_Y = Parameter("y", "tensor")
_DIM = Parameter("dim", "dim")
_LAST = Parameter("dim", "dim", -1)
_K = Parameter("k", "int")
_DIMS = Parameter("dim", "dims")
_KEEPDIM = Parameter("keepdim", "bool", False)
_TWO_VALUES = (Parameter("x", "value"), Parameter("y", "value"))
_SAMPLES = "declarative_train.components.expressions.samples"


def _each(target: str, *more: Parameter, dtype: ResultType = "floating") -> Function:
    return Function(target, (_X, *more), dtype)


def _reduce(target: str, dtype: ResultType = "promoted", keeps_range: bool = False) -> Function:
    return Function(target, (_X, _DIMS, _KEEPDIM), dtype, keeps_range=keeps_range)


def _move(target: str, *parameters: Parameter) -> Function:
    return Function(target, (_X, *parameters), keeps_range=True)


FUNCTIONS: dict[str, Function] = {
    "abs": _each("torch.abs", dtype="promoted"),
    "all": _reduce("torch.all", "bool"),
    "amax": _reduce("torch.amax", keeps_range=True),
    "amin": _reduce("torch.amin", keeps_range=True),
    "any": _reduce("torch.any", "bool"),
    "argmax": Function("torch.argmax", (_X, _DIM, _KEEPDIM), "int64"),
    "argmin": Function("torch.argmin", (_X, _DIM, _KEEPDIM), "int64"),
    "atan": _each("torch.atan"),
    "bool": Function(f"{_SAMPLES}.to_bool", (_X,), "bool"),
    "ceil": _each("torch.ceil", dtype="promoted"),
    "clamp": _each("torch.clamp", Parameter("min", "number", None), Parameter("max", "number", None), dtype="promoted"),
    "concat": Function(f"{_SAMPLES}.concat", (Parameter("x", "tensors"), _LAST), keeps_range=True),
    "cos": _each("torch.cos"),
    "cosine_similarity": Function("torch.nn.functional.cosine_similarity", (_X, _Y, _LAST), "floating"),
    "cumsum": Function("torch.cumsum", (_X, _DIM), "accumulated"),
    "detach": _move(f"{_SAMPLES}.detach"),
    "elu": _each("torch.nn.functional.elu", Parameter("alpha", "number", 1.0)),
    "erf": _each("torch.erf"),
    "exp": _each("torch.exp"),
    "expand": _move(f"{_SAMPLES}.expand", Parameter("size", "shape")),
    "expm1": _each("torch.expm1"),
    "flatten": _move(f"{_SAMPLES}.flatten", Parameter("start_dim", "dim", 1), Parameter("end_dim", "dim", -1)),
    "flip": Function("torch.flip", (_X, Parameter("dims", "dims")), keeps_range=True),
    "float": Function(f"{_SAMPLES}.to_float", (_X,), "float"),
    "floor": _each("torch.floor", dtype="promoted"),
    "gather": Function(
        f"{_SAMPLES}.gather", (_X, Parameter("index", "tensor"), _DIM), keeps_range=True, promotes=("x",)
    ),
    "gelu": _each("torch.nn.functional.gelu"),
    "int": Function(f"{_SAMPLES}.to_int", (_X,), "int64", keeps_range=True),
    "isfinite": _each("torch.isfinite", dtype="bool"),
    "isnan": _each("torch.isnan", dtype="bool"),
    "leaky_relu": _each("torch.nn.functional.leaky_relu", Parameter("negative_slope", "number", 0.01)),
    "log": _each("torch.log"),
    "log1p": _each("torch.log1p"),
    "log_sigmoid": _each("torch.nn.functional.logsigmoid"),
    "log_softmax": _each("torch.log_softmax", _LAST),
    "logsumexp": _reduce("torch.logsumexp", "floating"),
    "masked_fill": Function(
        "torch.masked_fill", (_X, Parameter("mask", "tensor"), Parameter("value", "number")), promotes=("x",)
    ),
    "matmul": Function("torch.matmul", (_X, _Y)),
    "max": _reduce("torch.amax", keeps_range=True),
    "maximum": Function(f"{_SAMPLES}.maximum", _TWO_VALUES, keeps_range=True),
    "mean": _reduce("torch.mean", "floating"),
    "min": _reduce("torch.amin", keeps_range=True),
    "minimum": Function(f"{_SAMPLES}.minimum", _TWO_VALUES, keeps_range=True),
    "mish": _each("torch.nn.functional.mish"),
    "nan_to_num": _each("torch.nan_to_num", Parameter("nan", "number", 0.0), dtype="promoted"),
    "norm": Function("torch.linalg.vector_norm", (_X, _DIMS, Parameter("ord", "number", 2), _KEEPDIM), "floating"),
    "normalize": _each("torch.nn.functional.normalize", _LAST),
    "one_hot": Function(f"{_SAMPLES}.one_hot", (_X, Parameter("num_classes", "int", None)), "float"),
    "ones_like": _each("torch.ones_like", dtype="promoted"),
    "permute": _move("torch.permute", Parameter("dims", "order")),
    "prod": Function("torch.prod", (_X, _DIM, _KEEPDIM), "accumulated"),
    "rand_like": Function("torch.rand_like", (_X,), random=True),
    "randn_like": Function("torch.randn_like", (_X,), random=True),
    "relu": _each("torch.relu", dtype="promoted"),
    "repeat_interleave": _move("torch.repeat_interleave", Parameter("repeats", "int"), _DIM),
    "reshape": _move(f"{_SAMPLES}.reshape", Parameter("shape", "shape")),
    "roll": _move("torch.roll", Parameter("shifts", "int"), Parameter("dims", "dim")),
    "round": _each("torch.round", dtype="promoted"),
    "rsqrt": _each("torch.rsqrt"),
    "sigmoid": _each("torch.sigmoid"),
    "sign": _each("torch.sign", dtype="promoted"),
    "silu": _each("torch.nn.functional.silu"),
    "sin": _each("torch.sin"),
    "softmax": _each("torch.softmax", _LAST),
    "softplus": _each("torch.nn.functional.softplus", Parameter("beta", "number", 1.0)),
    "sqrt": _each("torch.sqrt"),
    "square": _each("torch.square", dtype="promoted"),
    "squeeze": _move(f"{_SAMPLES}.squeeze", _LAST),
    "stack": Function(f"{_SAMPLES}.stack", (Parameter("x", "tensors"), Parameter("dim", "dim", 1)), keeps_range=True),
    "std": Function("torch.std", (_X, _DIMS, Parameter("correction", "int", 1), _KEEPDIM), "floating"),
    "sum": _reduce("torch.sum", "accumulated"),
    "tan": _each("torch.tan"),
    "tanh": _each("torch.tanh"),
    "topk": Function(f"{_SAMPLES}.topk", (_X, _K, _LAST), keeps_range=True),
    "topk_indices": Function(f"{_SAMPLES}.topk_indices", (_X, _K, _LAST), "int64"),
    "transpose": _move("torch.transpose", Parameter("dim0", "dim"), Parameter("dim1", "dim")),
    "unsqueeze": _move("torch.unsqueeze", _LAST),
    "var": Function("torch.var", (_X, _DIMS, Parameter("correction", "int", 1), _KEEPDIM), "floating"),
    "where": Function(
        "torch.where",
        (Parameter("condition", "tensor"), Parameter("x", "value"), Parameter("y", "value")),
        keeps_range=True,
        promotes=("x", "y"),
    ),
    "zeros_like": _each("torch.zeros_like", dtype="promoted"),
}
"""Functions by name, in alphabetical order (checked by a test)."""


def default(function: str, parameter: str) -> Any:
    """Return the default of the argument `parameter` of the expression function `function`. The layer with the
    same name as the function has the same default.
    """
    return next(each.default for each in FUNCTIONS[function].parameters if each.name == parameter)


_A = Parameter("a", "value")
_B = Parameter("b", "value")


def _binary(name: str, dtype: ResultType = "promoted") -> Function:
    return Function(f"operator.{name}", (_A, _B), dtype)


OPERATORS: dict[str, Function] = {
    "!=": _binary("ne", "bool"),
    "%": _binary("mod"),
    "&": _binary("and_"),
    "*": _binary("mul"),
    "**": _binary("pow"),
    "+": _binary("add"),
    "-": _binary("sub"),
    "/": _binary("truediv", "floating"),
    "//": _binary("floordiv"),
    "<": _binary("lt", "bool"),
    "<=": _binary("le", "bool"),
    "==": _binary("eq", "bool"),
    ">": _binary("gt", "bool"),
    ">=": _binary("ge", "bool"),
    "@": Function("operator.matmul", (_X, _Y)),
    "neg": Function("operator.neg", (_X,)),
    "pos": Function("operator.pos", (_X,), keeps_range=True),
    "|": _binary("or_"),
    "~": Function("operator.invert", (_X,)),
}

OF_NUMBERS: dict[str, tuple[int, int, Callable[..., float]]] = {
    **{name: (1, 1, getattr(math, name)) for name in ("ceil", "cos", "erf", "exp", "expm1", "floor", "log", "log1p",
                                                      "sin", "sqrt", "tan", "tanh", "atan")},
    "abs": (1, 1, abs),
    "maximum": (2, 2, max),
    "minimum": (2, 2, min),
    "round": (1, 1, round),
    "rsqrt": (1, 1, lambda x: x**-0.5),
}  # fmt: skip
"""Functions of constants, computed while the recipe is read: minimum and maximum number of arguments, and the
function."""

INDEX = "[]"  # name of the operation of a constant slice

WITHOUT_GRADIENT = frozenset(
    name
    for name, function in (FUNCTIONS | OPERATORS).items()
    if function.dtype in ("bool", "int64")
    or name
    in (
        "//",
        "ceil",
        "detach",
        "floor",
        "one_hot",
        "ones_like",
        "rand_like",
        "randn_like",
        "round",
        "sign",
        "zeros_like",
    )
)
"""Functions whose gradient is undefined or zero everywhere."""

VIEWS = frozenset(
    {INDEX, "expand", "flatten", "flip", "permute", "pos", "reshape", "squeeze", "transpose", "unsqueeze"}
)
"""Functions that rearrange or select values without changing them."""

_ALONG = ("dim", "dims")
ELEMENTWISE = frozenset(
    name
    for name, function in (FUNCTIONS | OPERATORS).items()
    if name in OPERATORS
    or not (VIEWS | {"concat", "gather", "matmul", "one_hot", "repeat_interleave", "stack"}) & {name}
    if name != "@" and not any(parameter.kind in _ALONG for parameter in function.parameters) and not function.random
)
"""Functions whose result at a position depends on the operands at that position only."""
