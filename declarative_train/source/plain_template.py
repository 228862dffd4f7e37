"""Evaluator of plain templates without Jinja: one `{{ }}` around names, numbers and `+ - * / //`.

Most templates of recipes are plain, and importing Jinja takes longer than reading the recipe. The values are those of
Jinja (a test compares them). Any other template, and any error, is left to Jinja and its messages.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

NOT_PLAIN = object()  # marks a template that needs Jinja

_OPERAND = r"(?:[A-Za-z]\w*(?:\.[A-Za-z]\w*)*|(?:0|[1-9][0-9]*)(?:\.[0-9]+)?)"
_PLAIN = re.compile(rf"\{{\{{\s*({_OPERAND}(?:\s*(?://|[-+*/])\s*{_OPERAND})*)\s*\}}\}}", re.ASCII)
_TOKEN = re.compile(rf"{_OPERAND}|//|[-+*/]", re.ASCII)
_LEVELS: tuple[dict[str, Callable[[float, float], float]], ...] = (  # higher precedence first
    {"*": operator.mul, "/": operator.truediv, "//": operator.floordiv},
    {"+": operator.add, "-": operator.sub},
)
_MOST_BITS = 64  # of an integer, as in the sandbox
_LONGEST = 1000  # characters of a template or of its value; longer ones are left to the sandbox


def evaluate_plain(text: str, names: Mapping[str, object]) -> object:
    """Return the value: a number, text, boolean or None; or NOT_PLAIN. Raises the exceptions of looking up a name."""
    tokens = _tokens(text)
    if tokens is None:
        return NOT_PLAIN
    values = [_operand(token, names) for token in tokens[::2]]
    if len(values) == 1:
        return values[0] if _is_small(values[0]) else NOT_PLAIN
    try:
        return _result([_number(value) for value in values], tokens[1::2])
    except (ArithmeticError, TypeError):
        return NOT_PLAIN


@lru_cache(maxsize=1024)  # the copies of a block render the same text repeatedly
def _tokens(text: str) -> tuple[str, ...] | None:
    """Return operands and operators in turn; None if the template is not plain."""
    found = _PLAIN.fullmatch(text) if len(text) <= _LONGEST else None
    return None if found is None else tuple(_TOKEN.findall(found[1]))


def _operand(token: str, names: Mapping[str, object]) -> object:
    if token[0].isdigit():
        return float(token) if "." in token else int(token)
    value: object = names
    for part in token.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return NOT_PLAIN
        value = value[part]
    return value


def _is_small(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= _LONGEST
    return value is None or isinstance(value, float) or (isinstance(value, int) and value.bit_length() <= _MOST_BITS)


def _number(value: object) -> float:
    """Return a number unchanged. Raises TypeError for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not _is_small(value):
        raise TypeError
    return value


def _result(values: list[float], operators: Sequence[str]) -> float:
    """Return the value of a sum of products, from left to right. Raises TypeError if an intermediate value is too
    large."""
    for level in _LEVELS:
        results, waiting = values[:1], list[str]()
        for symbol, value in zip(operators, values[1:], strict=True):
            if symbol in level:
                results[-1] = _number(level[symbol](results[-1], value))
            else:
                results.append(value)
                waiting.append(symbol)
        values, operators = results, waiting
    return values[0]
