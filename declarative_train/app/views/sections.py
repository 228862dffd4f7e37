"""Sections of a recipe as text: every key with its type, default and meaning, from the docstrings of the sections'
classes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from textwrap import indent
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic_core import PydanticUndefined

from declarative_train.app.views.components import type_name
from declarative_train.components.adapters.adapter import Adapter
from declarative_train.components.component import (
    Component,
    Init,
    Loss,
    LrSchedule,
    Metric,
    Optimizer,
    recipe_keys,
)
from declarative_train.components.data import Dataset, Field
from declarative_train.components.field_docs import field_docs
from declarative_train.components.split import Split
from declarative_train.components.transform import Transform
from declarative_train.core.duration import Duration
from declarative_train.recipe.sections.parallelism import Axes
from declarative_train.recipe.sections.section import Section
from declarative_train.recipe.sections.top import SECTIONS, Head, Top

KINDS: dict[type[Component], str] = {
    Dataset: "sources",
    Field: "fields",
    Split: "splits",
    Transform: "transforms",
    Init: "inits",
    Adapter: "adapters",
    Loss: "losses",
    Metric: "metrics",
    Optimizer: "optimizers",
    LrSchedule: "lr_schedules",
}
"""Families of components, by their names in `dtrain list`."""
TOP = "top"
NAMES = (TOP, *SECTIONS)


def section_page(name: str) -> str:
    """Return the manual page of one section: its description, then each key, and nested sections below their key."""
    if name == TOP:
        return "\n".join([f"{TOP} (level of a recipe)", "", _doc(Head), "", *_keys(Head)])
    if name == "parallelism":
        return "\n".join(["parallelism (section)", "", *_PARALLELISM, "", *_keys(Axes)])
    model = next(_sections_in(Top.model_fields[name].annotation))
    return "\n".join([f"{name} (section)", "", _doc(model), "", *_keys(model)])


def section_table() -> str:
    """Return a text with one line per section: its name and description."""
    width = max(map(len, NAMES)) + 2
    pages = {name: section_page(name).splitlines()[2] for name in NAMES}
    return "\n".join(f"{name:<{width}}{about}" for name, about in pages.items())


_PARALLELISM = (
    "How the ranks share the work: a word, or a product of axes.",
    "",
    "  single     one process on one device",
    "  dp         one process, several devices: each batch is scattered, the outputs are gathered",
    "  ddp        {data: {replicate: all}}",
    "  fsdp       {data: {shard: all}}",
    "  pipeline   {pipeline: {stages: ..., microbatches: ...}}",
    "  auto       the product that the planner expects to be fastest of those that fit; `dtrain plan` shows why",
    "",
    "Axes:",
)


def _doc(model: type[Section]) -> str:
    return inspect.cleandoc(model.__doc__ or "").replace("\n", " ")


def _keys(model: type[Section]) -> Iterator[str]:
    docs = field_docs(model)
    for key, name in recipe_keys(model).items():
        field = model.model_fields[name]
        if key == model.inline:
            yield "  and the keys of its `type`: `dtrain list " + KINDS[field.annotation] + "`"  # type: ignore[index]
            continue
        annotation: Any = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
        yield f"  {key}: {_type(annotation)}, {_default(field)}"
        if name in docs:
            yield indent(docs[name], "      ")
        for inner in _sections_in(annotation):
            yield indent("\n".join(_keys(inner)), "    ")


def _default(field: Any) -> str:
    if field.default is PydanticUndefined:
        return "required" if field.default_factory is None else "optional"
    if field.default is None or field.default in ({}, ()):
        return "optional"
    return f"default {_as_yaml(field.default)}"


def _as_yaml(value: Any) -> str:
    """Return a default value as it is written in a recipe."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    if isinstance(value, Section):
        return f"{{{', '.join(f'{name}: {{}}' for name in sorted(value.model_fields_set))}}}"
    return str(value)


def _type(annotation: Any) -> str:
    """Return a type as text for users. An alternative `None` is left out, since it only means that the key is
    optional."""
    if annotation is Any:
        return "anything"
    if get_origin(annotation) is Annotated:
        inner, *metadata = get_args(annotation)
        units = next((item.units for item in metadata if hasattr(item, "units")), ())
        return f"a number of {', '.join(units)}" if units else _type(inner)
    if annotation is Duration:
        return "duration"
    if isinstance(annotation, type) and annotation in KINDS:
        return f"one of the {KINDS[annotation]}"
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return "mapping"
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_type(item) for item in arguments if item is not type(None)))
    if origin is dict:
        return f"mapping of names to {_several(_type(arguments[1]))}"
    if origin is tuple:
        return f"list of {_several(_type(arguments[0]))}"
    return type_name(annotation)


def _several(kind: str) -> str:
    return f"{kind}s" if kind in ("mapping", "number", "text", "whole number") else kind


def _sections_in(annotation: Any) -> Iterator[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for argument in get_args(annotation):
        yield from _sections_in(argument)
