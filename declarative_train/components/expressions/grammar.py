"""Parser of expressions, which makes a tree of operations, constants and references from a text. It uses Python's `ast`
and never runs the text as Python.

The grammar is a subset of Python's expressions: arithmetic, comparison, `& | ~ @`, constant slices, references (`mu`,
`lstm.hidden`, `layers.3`, `layers.3.output`) and the functions of `functions.py`."""

from __future__ import annotations

import ast
import math
import operator
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from declarative_train.components.expressions.arguments import bind
from declarative_train.components.expressions.functions import FUNCTIONS, INDEX
from declarative_train.components.expressions.tokens import plain_python, word_advice
from declarative_train.components.expressions.tree import (
    Constant,
    ExpressionError,
    Operation,
    Reference,
    Term,
    Value,
    Vector,
)

__all__ = ["Constant", "Expression", "ExpressionError", "Operation", "Reference", "Term", "TypedName", "parse"]

_MAX_DEPTH = 60
_MOST_ENTRIES = 4096  # numbers in a vector

_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.MatMult: "@",
    ast.BitAnd: "&",
    ast.BitOr: "|",
}
_COMPARE: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
_UNARY: dict[type[ast.unaryop], str] = {ast.USub: "neg", ast.UAdd: "pos", ast.Invert: "~"}
_FOLD: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
}


class TypedName(NamedTuple):
    """Name in an expression, as the user typed it. `offset`: position in the text at which it first occurs."""

    text: str
    offset: int


class Expression(NamedTuple):
    """Parsed expression: its text and its tree. `names`: the references in order of appearance, each once."""

    text: str
    root: Term
    names: tuple[TypedName, ...]

    @property
    def is_random(self) -> bool:
        return any(
            isinstance(term, Operation) and term.name in FUNCTIONS and FUNCTIONS[term.name].random
            for term in _walk(self.root)
        )

    @property
    def operations(self) -> tuple[str, ...]:
        """Names in `functions.py` of all functions and operators in the expression. A name may repeat."""
        return tuple(term.name for term in _walk(self.root) if isinstance(term, Operation))

    @property
    def lone_name(self) -> str | None:
        """Name of the reference if the expression consists of one reference only, else None."""
        return self.root.text if isinstance(self.root, Reference) else None


def parse(text: str) -> Expression:
    """Return the expression that `text` contains. Raises ExpressionError with the position of the mistake in
    the text.
    """
    source = plain_python(text)
    if not source.strip():
        raise ExpressionError("an expression is empty", 0, len(text))
    reader = _TreeReader(text, source)
    root = reader.term(_python(text, source), 0)
    names: dict[str, TypedName] = {}
    for term in _walk(root):
        if isinstance(term, Reference):
            names.setdefault(term.text, TypedName(term.text, term.offset))
    if not names:
        message = "an expression must use a node or a field"
        raise ExpressionError(message, 0, len(text), "a plain number belongs where it is used", "form")
    return Expression(text, root, tuple(sorted(names.values(), key=lambda name: name.offset)))


def _python(text: str, source: str) -> ast.expr:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "int is not callable" is reported below, in our words
            return ast.parse(f"({source})", mode="eval").body  # in brackets, leading spaces and line breaks are allowed
    except SyntaxError as found:
        advice = word_advice(text)
        if advice is not None:
            raise advice from None
        line = source[: max(0, (found.offset or 1) - 2)]
        offset = min(len(line), max(0, len(text) - 1))
        hint = "write equality as `==`" if "'=='" in (found.msg or "") else None
        message = "this is not a valid expression: something is missing or superfluous here"
        raise ExpressionError(message, offset, 1, hint) from None
    except (RecursionError, MemoryError, ValueError):
        raise ExpressionError("this expression is nested too deeply", 0, len(text), "split it into nodes") from None


def _walk(term: Term) -> Iterator[Term]:
    yield term
    if isinstance(term, Operation):
        for operand in term.operands:
            yield from _walk(operand)


class _TreeReader:
    """Converter from Python's `ast` to the tree of an `Expression`. It replaces the placeholders of `tokens.py` by the
    references that the user typed, and positions in bytes by positions in characters."""

    def __init__(self, text: str, source: str) -> None:
        self._text = text
        encoded = f"({source})"
        self._characters: Sequence[int] = range(-1, len(encoded))
        if not source.isascii():
            self._characters = [i - 1 for i, c in enumerate(encoded) for _ in range(len(c.encode()))] + [len(text)]

    def place(self, node: ast.expr | ast.keyword) -> tuple[int, int]:
        """Return the position of an `ast` node in the text: offset and length, in characters."""
        start = max(0, self._characters[node.col_offset])  # these are the brackets around the whole text
        end = min(len(self._text), self._characters[node.end_col_offset or node.col_offset])
        return start, max(1, end - start)

    def _refuse(self, node: ast.expr, message: str, help: str | None = None) -> ExpressionError:
        return ExpressionError(message, *self.place(node), help, "form")

    def term(self, node: ast.expr, depth: int) -> Term:
        offset, length = self.place(node)
        if depth > _MAX_DEPTH:
            raise ExpressionError("this expression is nested too deeply", offset, length, "split it into nodes", "form")
        if isinstance(node, ast.Name):
            return self._reference(offset, length)
        if isinstance(node, ast.Constant):
            return self._constant(node)
        if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
            return self._unary(node, self.term(node.operand, depth + 1))
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            left, right = self.term(node.left, depth + 1), self.term(node.right, depth + 1)
            return self._binary(_BINARY[type(node.op)], left, right, offset, length)
        if isinstance(node, ast.Compare):
            return self._compare(node, depth)
        if isinstance(node, ast.Call):
            return self._call(node, depth)
        if isinstance(node, ast.Subscript):
            return self._index(node, depth)
        if isinstance(node, ast.Tuple | ast.List):
            return self._vector(node)
        raise self._refuse(node, "expressions do not support this Python syntax", "use operators, slices and functions")

    def _reference(self, offset: int, length: int) -> Term:
        text = self._text[offset : offset + length]
        if text in ("true", "false"):
            return Constant(text == "true", offset, length)
        if text.endswith("."):
            raise ExpressionError(f"`{text}` ends in a dot", offset, length)
        return Reference(text, offset, length)

    def _constant(self, node: ast.Constant) -> Constant:
        if not isinstance(node.value, bool | int | float):
            raise self._refuse(node, "constants are numbers, `true` and `false`")
        return Constant(node.value, *self.place(node))

    def _vector(self, node: ast.Tuple | ast.List) -> Vector:
        """Return the Vector for a list of numbers, one for each channel, as in `image - [0.485, 0.456, 0.406]`. Raises
        ExpressionError if `node` is a tuple, or has an entry that is not a number."""
        hint = "join tensors with `concat` or `stack`"
        if isinstance(node, ast.Tuple) and not all(isinstance(item, ast.Constant) for item in node.elts):
            raise self._refuse(node, "a list is allowed only as an argument", hint)
        if isinstance(node, ast.Tuple):
            raise self._refuse(node, "write a vector in square brackets", "`image - [0.485, 0.456, 0.406]`")
        values: list[int | float] = []
        for item in node.elts:
            found = self.term(item, 0)
            if not isinstance(found, Constant) or isinstance(found.value, bool):
                raise self._refuse(item, "a vector contains only numbers", hint)
            values.append(found.value)
        if not 0 < len(values) <= _MOST_ENTRIES:
            raise self._refuse(node, f"a vector has 1 to {_MOST_ENTRIES} numbers", hint)
        return Vector(tuple(values), *self.place(node))

    def _unary(self, node: ast.UnaryOp, operand: Term) -> Term:
        offset, length = self.place(node)
        name = _UNARY[type(node.op)]
        if isinstance(operand, Vector):
            raise self._refuse(node, "a sign before a vector", "give each number its sign")
        if not isinstance(operand, Constant):
            return Operation(name, (operand,), {}, offset, length)
        if name == "~" or not isinstance(operand.value, int | float):
            raise self._refuse(node, "`~` takes a tensor of bools, not a constant")
        return Constant(-operand.value if name == "neg" else +operand.value, offset, length)

    def _binary(self, name: str, left: Term, right: Term, offset: int, length: int) -> Term:
        if isinstance(left, Constant) and isinstance(right, Constant):
            return _fold(name, left.value, right.value, offset, length)
        if not any(isinstance(each, Reference | Operation) for each in (left, right)):
            message = "a vector needs a tensor as the other operand, not a constant"
            raise ExpressionError(message, offset, length, "write the numbers", "form")
        if name == "@" and isinstance(right if isinstance(left, Reference | Operation) else left, Vector):
            raise ExpressionError(
                "`@` multiplies two tensors", offset, length, "`sum(x * [1, 2], dim=-1)`", "arguments"
            )
        if name == "@" and (isinstance(left, Constant) or isinstance(right, Constant)):
            raise ExpressionError("`@` multiplies two tensors", offset, length, "a number takes `*`", "arguments")
        return Operation(name, (left, right), {}, offset, length)

    def _compare(self, node: ast.Compare, depth: int) -> Term:
        offset, length = self.place(node)
        if len(node.ops) > 1:
            raise self._refuse(node, "a chain of comparisons", "write `(a < b) & (b < c)`")
        if type(node.ops[0]) not in _COMPARE:
            raise self._refuse(node, "expressions compare with `== != < <= > >=` only")
        left, right = self.term(node.left, depth + 1), self.term(node.comparators[0], depth + 1)
        if not any(isinstance(each, Reference | Operation) for each in (left, right)):
            raise self._refuse(node, "this compares two constants")
        return Operation(_COMPARE[type(node.ops[0])], (left, right), {}, offset, length)

    def _call(self, node: ast.Call, depth: int) -> Term:
        offset, length = self.place(node)
        start, size = self.place(node.func)
        name = self._text[start : start + size]
        if not isinstance(node.func, ast.Name):
            raise self._refuse(node.func, "only named functions can be called")
        arguments = [self._argument(argument, depth) for argument in node.args]
        keywords: dict[str, Value | Term] = {}
        for keyword in node.keywords:
            at, _ = self.place(keyword)
            if keyword.arg is None:
                raise ExpressionError("expressions have no `**`", at, 2, rule="form")
            keywords[self._text[at : at + len(keyword.arg)]] = self._argument(keyword.value, depth)
        return bind(name, arguments, keywords, (start, size), (offset, length))

    def _argument(self, node: ast.expr, depth: int) -> Value | Term:
        if isinstance(node, ast.Starred):
            raise self._refuse(node, "expressions have no `*` before an argument")
        if isinstance(node, ast.List | ast.Tuple):
            items = tuple(self.term(item, depth + 1) for item in node.elts)
            return Value(items, *self.place(node))
        return self.term(node, depth + 1)

    def _index(self, node: ast.Subscript, depth: int) -> Term:
        offset, length = self.place(node)
        operand = self.term(node.value, depth + 1)
        if isinstance(operand, Reference) and operand.text.rpartition(".")[2] == "shape":
            raise self._refuse(node, "expressions cannot read sizes", "write the number, or `{{ vars.NAME }}`")
        if isinstance(operand, Constant | Vector):
            raise self._refuse(node, "a constant has no dimensions")
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        index = tuple(self._part(part) for part in parts)
        if not index or index[0] != slice(None):
            at, size = self.place(parts[0] if parts else node)
            message = "dimension 0 is the batch and cannot be indexed"
            raise ExpressionError(message, at, size, "begin with `:`, as in `x[:, 0]`", "batch")
        if index.count(...) > 1:
            raise self._refuse(node, "`...` may occur once")
        return Operation(INDEX, (operand,), {"index": index}, offset, length)

    def _part(self, node: ast.expr) -> object:
        if isinstance(node, ast.Slice):
            start, stop, step = (self._read_bound(bound) for bound in (node.lower, node.upper, node.step))
            if step is not None and step < 1:
                raise self._refuse(node, "a slice's step is at least 1", "`flip(x, dims)` reverses a dimension")
            return slice(start, stop, step)
        if isinstance(node, ast.Constant) and (node.value is ... or node.value is None):
            return node.value
        found = self._read_bound(node)
        assert found is not None
        return found

    def _read_bound(self, node: ast.expr | None) -> int | None:
        if node is None:
            return None
        term = self.term(node, 0)
        if isinstance(term, Constant) and isinstance(term.value, int) and not isinstance(term.value, bool):
            return term.value
        message = "slice bounds are whole numbers"
        raise self._refuse(node, message, "`gather(x, index, dim)` selects by tensor; a template can compute a bound")


def _fold(name: str, left: object, right: object, offset: int, length: int) -> Constant:
    """Return the result of an operator between two constants, as a constant. `name`: the operator, such as `+`.
    `offset`, `length`: position of the operation in the text. Raises ExpressionError if it cannot be computed."""
    numbers = isinstance(left, int | float) and isinstance(right, int | float)
    if name not in _FOLD or not numbers or (name == "**" and (abs(float(right)) > 64 or abs(float(left)) > 1e6)):  # type: ignore[arg-type]
        raise ExpressionError(f"`{name}` between these two constants", offset, length, "write the result", "form")
    try:
        value = _FOLD[name](left, right)  # type: ignore[arg-type]
    except (ArithmeticError, ValueError):
        raise ExpressionError("this cannot be computed", offset, length, "write the result", "form") from None
    if isinstance(value, complex) or (isinstance(value, float) and not math.isfinite(value)):
        raise ExpressionError("this is not a finite number", offset, length, "write the result", "form")
    return Constant(value, offset, length)
