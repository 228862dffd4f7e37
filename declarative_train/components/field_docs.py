"""Documentation of pydantic fields: the docstring under each field of a model's class.

It is read from the source only by commands that show it (`dtrain schema`, `dtrain list`). pydantic's own option reads
it whenever a class is created, which would cost every command a quarter of a second."""

from __future__ import annotations

import ast
import inspect
from functools import cache
from pathlib import Path

from pydantic import BaseModel


@cache
def field_docs(model: type[BaseModel]) -> dict[str, str]:
    """Return the docstrings under the fields of a pydantic model: a dict from field name to docstring. Fields of base
    classes are included, fields without a docstring are not."""
    found: dict[str, str] = {}
    for each in reversed(model.__mro__):
        if each is not BaseModel and issubclass(each, BaseModel):
            found |= _own_docs(each)
    descriptions = {name: field.description for name, field in model.model_fields.items() if field.description}
    return {name: text for name, text in {**found, **descriptions}.items() if name in model.model_fields}


def _own_docs(model: type[BaseModel]) -> dict[str, str]:
    try:
        path = inspect.getfile(model)
    except (OSError, TypeError):  # the class was made at run time, for a block's params or by a plugin
        return {}
    return _docs_of_file(path).get(model.__qualname__, {})


@cache
def _docs_of_file(path: str) -> dict[str, dict[str, str]]:
    """Return the field docstrings of all classes in a Python file: a dict from qualified class name to a dict from
    field to docstring."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError:
        return {}
    found: dict[str, dict[str, str]] = {}
    _collect(ast.parse(text).body, "", found)
    return found


def _collect(body: list[ast.stmt], prefix: str, found: dict[str, dict[str, str]]) -> None:
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            name = f"{prefix}{statement.name}"
            found[name] = _docs_in(statement)
            _collect(statement.body, f"{name}.", found)


def _docs_in(statement: ast.ClassDef) -> dict[str, str]:
    docs = {}
    for field, below in zip(statement.body, statement.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
            docs[field.target.id] = inspect.cleandoc(below.value.value)
    return docs
