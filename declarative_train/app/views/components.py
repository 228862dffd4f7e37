"""Text about components and devices, made from their docstrings and data sheets."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from textwrap import indent
from typing import Annotated, Any, get_args, get_origin

from pydantic_core import PydanticUndefined

from declarative_train.app.views.table import table
from declarative_train.components.component import Component, Layer, recipe_keys
from declarative_train.components.field_docs import field_docs
from declarative_train.components.hardware.hardware import GIB, GIGA, TERA, Hardware


def component_table(table: Mapping[str, type[Component]]) -> str:
    """Return a text with one line for each type in a table of components: its name and description."""
    width = max(map(len, table)) + 2
    return "\n".join(f"{name:<{width}}{summary(table[name])}" for name in sorted(table))


def summary(component: type[Component]) -> str:
    return (inspect.getdoc(component) or "").partition("\n\n")[0].replace("\n", " ")


def component_page(kind: str, component: type[Component]) -> str:
    """Return the manual page of a component of the kind `kind`: its description, ports and outputs, and its keys with
    type, default and meaning.
    """
    name = component.model_fields["type"].default
    lines = [f"{name} ({kind})", "", inspect.getdoc(component) or ""]
    if issubclass(component, Layer):
        ports = (
            f"{port.name}{' (optional)' if port.optional else ''}{'...' if port.variadic else ''}"
            for port in component.ports
        )
        lines += ["", f"inputs:  {', '.join(ports)}", f"outputs: {', '.join(component.outputs)}"]
    keys = describe_keys(component)
    lines += ["", "fields:" if keys else "no fields"]
    for each in keys:
        default = f"default {each['default']!r}" if "default" in each else "required"
        lines.append(f"  {each['key']}: {each['type']}, {default}")
        if each["about"]:
            lines.append(indent(str(each["about"]), "      "))
    return "\n".join(lines)


def describe_keys(component: type[Component]) -> list[dict[str, object]]:
    """Return a dict for each key of a component except `type`: `key` (its name), `type`, `about` (its meaning) and, if
    it is not required, `default`.
    """
    docs = field_docs(component)
    found: list[dict[str, object]] = []
    for key, name in recipe_keys(component).items():
        field = component.model_fields[name]
        if key != "type":
            each: dict[str, object] = {"key": key, "type": type_name(field.annotation), "about": docs.get(name, "")}
            found.append(each if field.default is PydanticUndefined else each | {"default": field.default})
    return found


def type_name(annotation: Any) -> str:
    """Return the name of a Python type as documentation of recipes writes it."""
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


PRECISIONS = ("bf16", "fp16", "fp32", "fp64")
HEAD = ("name", "GiB", *PRECISIONS, "memory", "link", "network")
UNITS = "dense peaks in TFLOP/s; memory, link inside a node and network per device, one way, in GB/s"


def hardware_table(devices: Sequence[Hardware]) -> str:
    return f"{table(HEAD, [_row(each) for each in devices], right=range(1, len(HEAD)))}\n\n{UNITS}"


def hardware_page(device: Hardware) -> str:
    called = f", which torch calls {' or '.join(device.device_names)}" if device.device_names else ""
    return f"{device.name} (hardware{called})\n\n{hardware_table([device])}\nsource: {device.source}"


def _row(device: Hardware) -> list[str]:
    memory = None if device.memory_bytes is None else device.memory_bytes / GIB
    peaks = [device.peak_of(precision) for precision in PRECISIONS]
    rates = [device.memory_per_s, device.link_per_s, device.network_per_s]
    return [
        device.name,
        _number(memory, 1),
        *(_number(peak, TERA) for peak in peaks),
        *(_number(rate, GIGA) for rate in rates),
    ]


def _number(value: float | None, unit: float) -> str:
    return "-" if value is None else f"{value / unit:,.4g}"
