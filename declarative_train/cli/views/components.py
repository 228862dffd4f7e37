"""Components as text: from their models' own docs, so that nothing is said twice."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from textwrap import indent
from typing import Annotated, Any, get_args, get_origin

from pydantic_core import PydanticUndefined

from declarative_train.components.component import Component, Layer
from declarative_train.components.field_docs import field_docs


def component_table(table: Mapping[str, type[Component]]) -> str:
    """One line per type: its name and what it does."""
    width = max(map(len, table)) + 2
    return "\n".join(f"{name:<{width}}{summary(table[name])}" for name in sorted(table))


def summary(component: type[Component]) -> str:
    return (inspect.getdoc(component) or "").partition("\n\n")[0].replace("\n", " ")


def component_page(kind: str, component: type[Component]) -> str:
    """The manual page of one type: docs, ports, outputs, fields with type, default and meaning."""
    name = component.model_fields["type"].default
    lines = [f"{name} ({kind})", "", inspect.getdoc(component) or ""]
    if issubclass(component, Layer):
        ports = (
            f"{port.name}{' (optional)' if port.optional else ''}{'...' if port.variadic else ''}"
            for port in component.ports
        )
        lines += ["", f"inputs:  {', '.join(ports)}", f"outputs: {', '.join(component.outputs)}"]
    docs = field_docs(component)
    fields = {key: field for key, field in component.model_fields.items() if key != "type"}
    lines += ["", "fields:" if fields else "no fields"]
    for key, field in fields.items():
        default = "required" if field.default is PydanticUndefined else f"default {field.default!r}"
        lines.append(f"  {key}: {type_name(field.annotation)}, {default}")
        if key in docs:
            lines.append(indent(docs[key], "      "))
    return "\n".join(lines)


def type_name(annotation: Any) -> str:
    """A type in the words of a recipe."""
    plain = {int: "whole number", float: "number", str: "text", bool: "true or false", type(None): "null"}
    if annotation in plain:
        return plain[annotation]
    arguments = get_args(annotation)
    if not arguments:
        return getattr(annotation, "__name__", str(annotation))
    origin = get_origin(annotation)
    if origin is Annotated:
        return type_name(arguments[0])
    if origin is tuple:
        return f"list of {type_name(arguments[0])}"
    if origin is dict:
        return f"mapping of {type_name(arguments[0])} to {type_name(arguments[1])}"
    if all(isinstance(argument, str) for argument in arguments):
        return " | ".join(arguments)
    return " | ".join(type_name(argument) for argument in arguments)
