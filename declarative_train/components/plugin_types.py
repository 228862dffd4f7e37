"""Pydantic types of a plugin's arguments, read from annotations and defaults without running code."""

from __future__ import annotations

import ast
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Literal, Optional, Union

Dotted = Callable[[ast.expr | None], str]

_PLAIN: dict[str, Any] = {"int": int, "float": float, "str": str, "bool": bool, "None": type(None)}
_LISTS = ("list", "List", "Sequence", "typing.List", "typing.Sequence", "collections.abc.Sequence")
_TUPLES = ("tuple", "Tuple", "typing.Tuple")
_DICTS = ("dict", "Dict", "Mapping", "typing.Dict", "typing.Mapping", "collections.abc.Mapping")


class DefaultKind(Enum):
    """Default of an argument. NONE: there is none, so the argument is required. KNOWN: a literal. COMPUTED: an
    expression that only running the code can evaluate."""

    NONE = auto()
    KNOWN = auto()
    COMPUTED = auto()


def default_of(node: ast.expr | None) -> tuple[DefaultKind, Any]:
    if node is None:
        return DefaultKind.NONE, None
    try:
        return DefaultKind.KNOWN, ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return DefaultKind.COMPUTED, None


def type_of(annotation: ast.expr | None, dotted: Dotted, kind: DefaultKind, default: Any) -> tuple[Any, bool]:
    """Return (pydantic type, is_list) of an argument of user code. The type is `Any` if the annotation does not
    describe plain data. `is_list`: the code expects a list, so the tuple from the recipe must be converted.

    `kind`, `default`: kind and value of the argument's default. `dotted`: function that returns the dotted name of an
    expression.
    """
    if annotation is None:
        return _type_of_default(kind, default)
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        try:
            annotation = ast.parse(annotation.value, mode="eval").body
        except SyntaxError:
            return Any, False
    found = _read(annotation, dotted)
    if kind is DefaultKind.KNOWN and default is None and found is not Any:
        found = Optional[found]  # noqa: UP045 - `found` is a value here
    return found, _is_list(annotation, dotted)


def _type_of_default(kind: DefaultKind, default: Any) -> tuple[Any, bool]:
    if kind is not DefaultKind.KNOWN or default is None:
        return Any, False
    if isinstance(default, list | tuple):
        return tuple[Any, ...], isinstance(default, list)
    return (type(default), False) if type(default) in _PLAIN.values() else (Any, False)


def _is_list(node: ast.expr, dotted: Dotted) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_list(node.left, dotted) or _is_list(node.right, dotted)
    if isinstance(node, ast.Subscript) and dotted(node.value) in ("Optional", "typing.Optional"):
        return _is_list(node.slice, dotted)
    return dotted(node.value if isinstance(node, ast.Subscript) else node) in _LISTS


def _read(node: ast.expr, dotted: Dotted) -> Any:
    if isinstance(node, ast.Constant) and node.value is None:
        return type(None)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _union([_read(node.left, dotted), _read(node.right, dotted)])
    name = dotted(node.value if isinstance(node, ast.Subscript) else node)
    if not isinstance(node, ast.Subscript):
        bare: dict[str, Any] = dict.fromkeys(_LISTS + _TUPLES, tuple[Any, ...]) | dict.fromkeys(_DICTS, dict[str, Any])
        return _PLAIN.get(name, bare.get(name, Any))
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if name in ("Literal", "typing.Literal"):
        values = tuple(part.value for part in parts if isinstance(part, ast.Constant))
        return Literal[values] if len(values) == len(parts) else Any
    if name in ("Annotated", "typing.Annotated"):
        return _read(parts[0], dotted)
    if name in ("Optional", "typing.Optional"):
        return _union([_read(parts[0], dotted), type(None)])
    if name in ("Union", "typing.Union"):
        return _union([_read(part, dotted) for part in parts])
    if name in _LISTS:
        return tuple[_read(parts[0], dotted), ...]  # type: ignore[misc]
    if name in _TUPLES:
        if len(parts) == 2 and isinstance(parts[1], ast.Constant) and parts[1].value is ...:
            return tuple[_read(parts[0], dotted), ...]  # type: ignore[misc]
        return tuple[tuple(_read(part, dotted) for part in parts)]  # type: ignore[misc]
    if name in _DICTS and len(parts) == 2:
        return dict[str, _read(parts[1], dotted)]  # type: ignore[misc]
    return Any


def _union(types: list[Any]) -> Any:
    return Any if Any in types else Union[tuple(types)]  # noqa: UP007 - the types are values here
