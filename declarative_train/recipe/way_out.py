"""What to write in the place of a value of the wrong type, where that is certain: words of YAML 1.1, quotes too many or
too few."""

from __future__ import annotations

from typing import NamedTuple

from declarative_train.diagnostics.diagnostic import Fix
from declarative_train.source.node import Node, Scalar

_WORDS_OF_1_1 = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}
_NUMBERS = ("int_type", "int_from_float", "float_type")


class WayOut(NamedTuple):
    help: str | None = None
    fixes: tuple[Fix, ...] = ()


def way_out(node: Node, kind: str) -> WayOut:
    """`kind`: pydantic's word for the type that was wanted."""
    if not isinstance(node, Scalar) or node.value is None:
        return WayOut()
    if node.template is not None:
        return _of_template(node) if kind in _NUMBERS else WayOut()
    if kind == "string_type":
        return _write(node, f'"{node.text}"')
    if not isinstance(node.value, str):
        return WayOut()
    word = _WORDS_OF_1_1.get(node.value.lower())
    if word is not None:
        return _write(node, word) if kind == "bool_type" else WayOut(f"`{node.text}` is a text in YAML 1.2")
    if kind in _NUMBERS and node.quoted and _is_number(node.value):
        return WayOut("write it without quotes", _edit(node, node.text))
    return WayOut()


def _of_template(node: Scalar) -> WayOut:
    if isinstance(node.value, float):
        return WayOut("`//` divides without a rest, `| int` cuts one off")
    return WayOut("a template keeps the type of its value only when nothing stands around it, not even a space")


def _write(node: Scalar, text: str) -> WayOut:
    return WayOut(f"write `{text}`", _edit(node, text))


def _edit(node: Scalar, text: str) -> tuple[Fix, ...]:
    is_plain = not node.pieces and node.span.line == node.span.end_line
    return (Fix(node.span, text, safe=True),) if is_plain else ()


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
