"""Matching of the arguments of a call in an expression to the parameters of the function, and a check of each
argument."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from declarative_train.components.expressions import aliases
from declarative_train.components.expressions.functions import FUNCTIONS, OF_NUMBERS, Function, Parameter
from declarative_train.components.expressions.tree import (
    BATCH,
    Constant,
    ExpressionError,
    ExpressionRule,
    Operation,
    Reference,
    Term,
    Value,
    Vector,
)
from declarative_train.core.amounts import format_count

Argument = Term | Value
Place = tuple[int, int]  # offset, length

_SIZE_LIMIT = 2**31


def bind(
    name: str,
    arguments: Sequence[Argument],
    keywords: Mapping[str, Argument],
    name_at: Place,
    at: Place,
) -> Operation | Constant:
    """Return the operation for a call of the function `name` in an expression, or its value if the function works on
    numbers, such as `sqrt`, and all arguments are constants. Raises ExpressionError with the function's signature if
    the arguments do not fit.

    `arguments`, `keywords`: arguments by position and by name. `name_at`, `at`: positions in the text of the name and
    of the call."""
    function = FUNCTIONS.get(name)
    if function is None:
        raise _unknown(name, name_at)
    call = _Call(name, function, at)
    given_numbers = [
        item.value for item in arguments if isinstance(item, Constant) and not isinstance(item.value, bool)
    ]
    if name in OF_NUMBERS and not keywords and arguments and len(given_numbers) == len(arguments):
        return call.compute_constant(given_numbers)
    bound = call.match(arguments, keywords)
    operands: list[Term] = []
    options: dict[str, object] = {}
    for parameter in function.parameters:
        if parameter.name not in bound:
            if parameter.required:
                raise call.wrong(f"`{name}` needs `{parameter.name}`", at)
            if parameter.kind in ("dim", "int") and parameter.default is not None:
                options[parameter.name] = parameter.default
            continue
        given = bound[parameter.name]
        if parameter.kind in ("tensor", "value", "tensors"):
            operands += call.tensors(parameter, given)
        else:
            options[parameter.name] = call.option(parameter, given)
    if not any(isinstance(operand, Reference | Operation) for operand in operands):
        raise call.wrong(f"`{name}` takes a tensor, not constants only", at)
    return Operation(name, tuple(operands), options, *at)


class _Call:
    def __init__(self, name: str, function: Function, at: Place) -> None:
        self.name, self.function, self.at = name, function, at

    def wrong(
        self, message: str, at: Place, rule: ExpressionRule = "arguments", help: str | None = None
    ) -> ExpressionError:
        return ExpressionError(message, *at, help or f"it is `{self.name}({self.function.signature})`", rule)

    def match(self, arguments: Sequence[Argument], keywords: Mapping[str, Argument]) -> dict[str, object]:
        """Return a dict from parameter name to argument for this call. A parameter that accepts any number of arguments
        gets a list. `arguments`, `keywords`: arguments passed by position and by name."""
        parameters = self.function.parameters
        bound: dict[str, object] = {}
        if parameters[0].kind == "tensors":
            bound[parameters[0].name] = list(arguments)
        else:
            if len(arguments) > len(parameters):
                if parameters[-1].kind not in ("shape", "dims", "order"):
                    extra = arguments[len(parameters)]
                    raise self.wrong(f"`{self.name}` takes at most {len(parameters)} arguments", _place(extra))
                first = len(parameters) - 1  # reshape(x, B, 16) means reshape(x, [B, 16])
                rest = arguments[first:]
                terms = tuple(item for item in rest if not isinstance(item, Value))
                if len(terms) < len(rest):
                    raise self.wrong(f"`{self.name}` takes one list of sizes", _place(rest[0]))
                start = _place(rest[0])[0]
                end = sum(_place(rest[-1]))
                arguments = [*arguments[:first], Value(terms, start, end - start)]
            bound.update({parameter.name: item for parameter, item in zip(parameters, arguments, strict=False)})
        known = {parameter.name for parameter in parameters}
        for key, item in keywords.items():
            if key not in known:
                raise self.wrong(f"`{self.name}` has no argument `{key}`", _place(item))
            if key in bound:
                raise self.wrong(f"`{self.name}` gets `{key}` twice", _place(item))
            bound[key] = item
        return bound

    def tensors(self, parameter: Parameter, given: object) -> list[Term]:
        items: list[Argument] = list(given) if isinstance(given, list) else [given]  # type: ignore[list-item]
        if parameter.kind == "tensors":
            if len(items) == 1 and isinstance(items[0], Value):
                items = list(items[0].items)
            if not items:
                raise self.wrong(f"`{self.name}` needs at least one tensor", self.at)
        found: list[Term] = []
        for item in items:
            if isinstance(item, Value) and parameter.kind == "value":
                item = self._vector(item)
            if isinstance(item, Value):
                raise self.wrong(f"`{parameter.name}` of `{self.name}` is a tensor, not a list", _place(item))
            if isinstance(item, Constant) and (parameter.kind != "value" or isinstance(item.value, bool)):
                message = f"`{parameter.name}` of `{self.name}` is a tensor, not a constant"
                raise self.wrong(message, _place(item), help=aliases.instead_of_constant(self.name, item.value))
            found.append(item)
        return found

    def _vector(self, given: Value) -> Vector:
        numbers = [
            item.value for item in given.items if isinstance(item, Constant) and not isinstance(item.value, bool)
        ]
        if len(numbers) < len(given.items) or not numbers:
            raise self.wrong("a vector contains only numbers", _place(given))
        return Vector(tuple(numbers), *_place(given))

    def compute_constant(self, values: Sequence[float]) -> Constant:
        """Return the result of the function for constant arguments. Raises ExpressionError if it cannot be computed or
        is not finite."""
        least, most, compute = OF_NUMBERS[self.name]
        if not least <= len(values) <= most:
            raise self.wrong(f"`{self.name}` takes {format_count(least, 'argument')}", self.at)
        try:
            found = compute(*values)
        except (ArithmeticError, ValueError):
            raise ExpressionError("this cannot be computed", *self.at, "write the result", "form") from None
        if not math.isfinite(found):
            raise ExpressionError("this is not a finite number", *self.at, "write the result", "form")
        return Constant(found, *self.at)

    def option(self, parameter: Parameter, given: object) -> object:
        assert isinstance(given, Constant | Reference | Operation | Value)
        at, kind = _place(given), parameter.kind
        called = f"`{parameter.name}` of `{self.name}`"
        if kind == "dim":
            return self._dim(given, called)
        if kind == "dims":
            items = given.items if isinstance(given, Value) else (given,)
            if not items:
                raise self.wrong(f"{called} is an empty list", at)
            return tuple(self._dim(item, called) for item in items)
        if kind in ("order", "shape"):
            items = given.items if isinstance(given, Value) else (given,)
            if not items and kind == "order":
                raise self.wrong(f"{called} is an empty list", at)
            return self._order(items, called, at) if kind == "order" else self._shape(items, called, at)
        if kind == "int":
            return self._int(given, called)
        if not isinstance(given, Constant):
            raise self.wrong(f"{called} is a constant, not a tensor", at)
        if (kind == "bool") != isinstance(given.value, bool):
            raise self.wrong(f"{called} is {'`true` or `false`' if kind == 'bool' else 'a number'}", at)
        return given.value

    def _dim(self, given: Argument, called: str) -> int:
        dim = self._int(given, called)
        if dim == 0:
            hint = "the first dimension of a sample is 1, the last is -1"
            bound = aliases.BOUNDS.get(self.name)
            if bound is not None:
                hint = f"to compare with a number write `clamp(x, {bound}=0)`; {hint}"
            message = "dimension 0 is the batch: it cannot be reduced, moved or joined"
            raise self.wrong(message, _place(given), "batch", hint)
        return dim

    def _int(self, given: Argument, called: str) -> int:
        if _is_batch(given):
            message = f"`{BATCH}` means the batch in a shape; here dimensions are numbers, and the batch is 0"
            hint = "the first dimension of a sample is 1, the last is -1"
            raise self.wrong(message, _place(given), "batch", hint if self.name != "permute" else None)
        value = given.value if isinstance(given, Constant) else None
        if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= _SIZE_LIMIT:
            raise self.wrong(f"{called} is a whole number", _place(given))
        return value

    def _order(self, items: Sequence[Argument], called: str, at: Place) -> tuple[int, ...]:
        dims = tuple(self._int(item, called) for item in items)
        if dims[0] != 0 or 0 in dims[1:]:
            rest = ", ".join(str(dim) for dim in dims if dim != 0)
            message = "an order of dimensions begins with the batch, 0"
            raise self.wrong(message, at, "batch", f"write `{self.name}(x, 0, {rest})`")
        if len(set(dims)) < len(dims):
            raise self.wrong(f"{called} names each dimension once", at)
        return dims

    def _shape(self, items: Sequence[Argument], called: str, at: Place) -> tuple[str | int, ...]:
        first = 1 if items and _is_batch(items[0]) else 0
        if astray := next((item for item in items[first:] if _is_batch(item)), None):
            message = f"a shape begins with the batch, `{BATCH}`, and has it once"
            others = [str(item.value) for item in items if isinstance(item, Constant)]
            hint = f"write `{self.name}({', '.join(['x', BATCH, *others])})`"
            raise self.wrong(message, _place(astray), "batch", hint)
        if astray := next((item for item in items if _holds_batch(item)), None):
            message = f"`{BATCH}` is the batch size: it cannot be used in arithmetic"
            raise self.wrong(message, _place(astray), "batch", "the sizes of a sample do not depend on the batch")
        sizes = tuple(self._int(item, called) for item in items[first:])
        if any(size < -1 or size == 0 for size in sizes):
            raise self.wrong(f"{called} are {BATCH} and sizes of 1 or more, or -1", at)
        if sizes.count(-1) > 1 and self.name == "reshape":
            raise self.wrong(f"one size of `{self.name}` may be -1 and follows from the others", at)
        if not first:
            what = ": a -1 is a size that follows from the others" if sizes[:1] == (-1,) else ""
            hint = f"write `{self.name}({', '.join(['x', BATCH, *map(str, sizes)])})`"
            raise self.wrong(f"a shape begins with the batch, `{BATCH}`{what}", at, "batch", hint)
        return (BATCH, *sizes)


def _is_batch(item: Argument) -> bool:
    return isinstance(item, Reference) and item.text == BATCH


def _holds_batch(item: Argument) -> bool:
    operands = item.operands if isinstance(item, Operation) else item.items if isinstance(item, Value) else ()
    return any(_is_batch(each) or _holds_batch(each) for each in operands)


def _place(item: Argument) -> Place:
    return item.offset, item.length


def _unknown(name: str, at: Place) -> ExpressionError:
    from difflib import get_close_matches  # imported only to report a mistake

    owner, _, last = name.rpartition(".")
    note, instead = aliases.NOTES.get(last), aliases.FUNCTIONS_HERE.get(last)
    close = get_close_matches(name, FUNCTIONS, n=1, cutoff=0.6) if note is None else []
    instead = instead or (close[0] if close else None)
    if note is not None:
        offered, instead = note, None
    elif last in FUNCTIONS and owner in ("torch", "F", "np", "numpy", "math", "torch.nn.functional", "nn.functional"):
        offered, instead = f"write `{last}(...)`", last
    elif last in FUNCTIONS:
        offered, instead = f"write `{last}({owner}, ...)`: tensors have no methods here", None
    elif last in aliases.FUNCTIONS_HERE:
        offered = f"its name here is `{instead}`"
    elif (layer := aliases.layer_called(last)) is not None:
        offered, instead = f"it is a layer: a node of its own, `{{type: {layer}, input: ...}}`", None
    else:
        offered = f"did you mean `{instead}`?" if instead else f"known: {', '.join(FUNCTIONS)}"
    message = f"there is no function `{name}` in expressions"
    return ExpressionError(message, *at, offered, "function", None if instead is None else (name, instead))
