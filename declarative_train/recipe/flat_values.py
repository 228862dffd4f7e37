"""Single values of a recipe, each with its path and its span, as `dtrain show` prints them."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping as MappingABC
from typing import NamedTuple

from pydantic import BaseModel

from declarative_train.core.duration import Duration
from declarative_train.core.span import Span
from declarative_train.recipe.sections.section import Section
from declarative_train.recipe.sections.top import SECTIONS
from declarative_train.source.node import Mapping, Node, Path, Scalar, Sequence, to_value

HEAD = ("requires", "language", "name", "seed", "vars", "meta", "plugins")
"""Top-level keys of a merged recipe that are not sections."""
_OF_FILES = ("extends", "fragment")


class Leaf(NamedTuple):
    """Single value of a recipe, a scalar or a whole list, after merging and rendering. `path`: keys from the root.
    `span`: where the value is written; None for a default.
    """

    path: Path
    value: object
    span: Span | None


def leaves(values: MappingABC[str, object], tree: Mapping) -> Iterator[Leaf]:
    """Yield the single values of a recipe, in the standard order of sections.

    `values`: {name: value} of the sections and other top-level keys that could be read; defaults are yielded too.
    `tree`: the merged recipe. The model, and all keys that are not in `values`, are read from it, without defaults.
    """
    for name in (*HEAD, *SECTIONS):
        word = getattr(values.get(name), "word", None) if name == "parallelism" else None
        if word is not None:
            node = tree.get(name)
            yield Leaf((name,), word, None if node is None else node.span)
        elif name in values and name != "model":
            yield from _read((name,), values[name], tree.get(name))
        else:
            yield from _iterate_written((name,), tree.get(name))
    for entry in tree:
        if entry.name not in HEAD and entry.name not in SECTIONS and entry.name not in _OF_FILES:
            yield from _iterate_written((entry.name,), entry.value)


def _read(path: Path, value: object, node: Node | None) -> Iterator[Leaf]:
    """Yield a Leaf for each single value inside `value`, which can be a section, a component or a mapping. Any other
    `value` is itself a single value. Nothing is yielded for None and for an empty list or mapping. `path`: path of
    `value`. `node`: the YAML node from which it was read; None for a default."""
    if isinstance(value, BaseModel):
        for name, info in type(value).model_fields.items():
            inner, key = getattr(value, name), info.alias or name
            if isinstance(value, Section) and name == value.inline:
                yield from _read(path, inner, node)
            elif inner is not None:
                yield from _read((*path, key), inner, node.get(key) if isinstance(node, Mapping) else None)
    elif isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _read((*path, key), inner, node.get(str(key)) if isinstance(node, Mapping) else None)
    elif value not in (None, {}, ()):
        shown = str(value) if isinstance(value, Duration) else value
        if isinstance(node, Scalar) and node.value == value:
            shown = node.value  # as written: 30 instead of 30.0
        yield Leaf(path, shown, None if node is None else node.span)


def _iterate_written(path: Path, node: Node | None) -> Iterator[Leaf]:
    """Yield the single values inside a YAML node; a list is one value."""
    if isinstance(node, Mapping):
        for entry in node:
            yield from _iterate_written((*path, entry.name), entry.value)
    elif isinstance(node, Sequence):
        yield Leaf(path, to_value(node), node.span)
    elif isinstance(node, Scalar):
        yield Leaf(path, node.value, node.span)
