"""Validation of a mapping of a recipe by a pydantic model: a section, a component or a node of the graph."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Mapping as MappingABC
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from typing import Annotated, Any, NamedTuple, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from declarative_train.components.adapters.adapter import Adapter
from declarative_train.components.component import (
    Component,
    Init,
    Keys,
    Layer,
    Loss,
    LrSchedule,
    Metric,
    Optimizer,
)
from declarative_train.components.data import Dataset, Field
from declarative_train.components.split import Split
from declarative_train.components.transform import Transform
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.span import Span
from declarative_train.recipe.sections.section import Section
from declarative_train.source.node import Mapping, Scalar, to_value

M = TypeVar("M", bound=BaseModel)


def validate(
    model: type[M],
    node: Mapping,
    *,
    where: str | None = None,
    at: Span | None = None,
    leave: Iterable[str] = (),
    extra_known: Iterable[str] = (),
    given: MappingABC[str, object] | None = None,
    elsewhere: Callable[[str, str | None], str | None] = lambda name, near: None,
) -> tuple[M | None, list[Diagnostic]]:
    """Return an object of the pydantic class `model` for a mapping, or None and all errors.

    `where`        name of the mapping in messages (default: its `type` in backticks)
    `at`           span at which missing keys are reported (default: that of the `type`, else of the mapping)
    `leave`        keys of the mapping that are not read here
    `extra_known`  keys that are suggested for an unknown name in addition to the model's own
    `given`        values of keys in `leave` that the caller has read; a key with errors is absent
    `elsewhere`    function (unknown key, nearest known key or None) -> where the key belongs, or None
    """
    left = frozenset(leave)
    values = {entry.name: to_value(entry.value) for entry in node.entries if entry.name not in left}
    internal = values.keys() & getattr(model, "internal", ())
    made: M | None = None
    errors: list[ErrorDetails] = []
    try:
        made = model.model_validate({**values, **(given or {})})
    except ValidationError as found:
        ignored = left - (given or {}).keys() | internal  # the reader of these values reported their errors
        errors = [error for error in found.errors(include_url=False) if not ignored.intersection(error["loc"][:1])]
    errors += [{"type": "extra_forbidden", "loc": (key,), "msg": "", "input": values[key]} for key in sorted(internal)]
    if not errors:
        return made, []
    from declarative_train.recipe.hints.pydantic_errors import (  # imported only for errors
        Reading,
        explain,
    )

    kept = node.without(left - (given or {}).keys())
    kind = kept.get("type")
    called = where or (f"`{kind.text}`" if isinstance(kind, Scalar) else "this mapping")
    place = at or (kind.span if kind is not None else node.span)
    return None, explain(errors, kept, place, Reading(node, called, tuple(extra_known), model, elsewhere))


C = TypeVar("C", bound=Component)

KINDS: dict[type[Component], tuple[str, str]] = {  # interface -> (word in messages, place of its table)
    Adapter: ("adapter", "adapters.ADAPTERS"),
    Dataset: ("source", "datasets.DATASETS"),
    Field: ("field", "fields.FIELDS"),
    Init: ("init", "inits.INITS"),
    Layer: ("layer", "layers.LAYERS"),
    Loss: ("loss", "losses.LOSSES"),
    LrSchedule: ("lr schedule", "lr_schedules.LR_SCHEDULES"),
    Metric: ("metric", "metrics.METRICS"),
    Optimizer: ("optimizer", "optimizers.OPTIMIZERS"),
    Split: ("split", "splits.SPLITS"),
    Transform: ("transform", "transforms.TRANSFORMS"),
}


Added = MappingABC[str, MappingABC[str, type[Component]]]
"""Components that the plugins of a recipe bring, by the name of their kind."""
_ADDED: ContextVar[Added | None] = ContextVar("added", default=None)


def list_added() -> Added:
    """Return {kind: {type: component class}} for the component classes that the active `adding` block has added."""
    return _ADDED.get() or {}


@contextmanager
def adding(components: Added) -> Iterator[None]:
    """Add the component classes of plugins to the component tables during the `with` block, in which a recipe is
    read."""
    token = _ADDED.set(components)
    try:
        yield
    finally:
        _ADDED.reset(token)


def table(kind: type[C]) -> MappingABC[str, type[C]]:
    """Return {type: class} of all components of a kind, those of plugins included."""
    word, place = KINDS[kind]
    module, _, name = place.rpartition(".")
    found: MappingABC[str, type[C]] = getattr(import_module(f"declarative_train.components.{module}"), name)
    more: Any = list_added().get(word)
    return {**found, **more} if more else found


def table_of_word(word: str) -> MappingABC[str, type[Component]]:
    return table(next(kind for kind, (name, _) in KINDS.items() if name == word))


class Child(NamedTuple):
    """Description of a pydantic field whose value is a section or component, or a collection of them. This package
    reads such fields itself, before pydantic reads the other fields. `model`: class of the section, or base class of
    the components. `holder`: `dict` for a mapping, `tuple` for a list, None for a single value."""

    model: Any
    holder: type | None


@cache
def children_of(model: type[BaseModel]) -> dict[str, Child]:
    found = {}
    for name, info in model.model_fields.items():
        child = _child(info.annotation)
        if child is not None:
            found[name] = child
    return found


def _child(annotation: Any) -> Child | None:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _child(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return next((child for each in get_args(annotation) if (child := _child(each)) is not None), None)
    if origin in (dict, tuple):
        inner = _child(get_args(annotation)[1 if origin is dict else 0])
        return None if inner is None else Child(inner.model, origin)
    if annotation in KINDS or (isinstance(annotation, type) and issubclass(annotation, Section | Keys)):
        return Child(annotation, None)
    return None
