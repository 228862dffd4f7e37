"""Completion of the keys of a node that is a model of a library (transformers, timm). Paths become absolute, and the
values in the config.json of `path` are added as keys."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from declarative_train.packs.pretrained.published import PublishedError, find_published_folder, read_config
from declarative_train.recipe.checks.blocks import published_model
from declarative_train.source.node import Entry, Mapping, Node, Scalar, Sequence

if TYPE_CHECKING:
    from declarative_train.core.diagnostics.diagnostic import Diagnostic
    from declarative_train.core.span import Span


def library_fields(
    library: str, fields: Mapping, resolve: Callable[[str, Span], str]
) -> tuple[Mapping, list[Diagnostic]]:
    """Return (keys, diagnostics) for a node that is a library's model: the keys in `fields`, and the values in the
    config.json of its `path` that the node does not set itself. Paths among the keys are made absolute. `resolve`:
    function (path, span) -> absolute path."""
    weights = fields.entry("pretrained")
    if weights is not None and isinstance(weights.value, Scalar) and isinstance(weights.value.value, str):
        where = resolve(weights.value.value, weights.value.span)
        fields = _with(fields, "pretrained", Scalar(where, weights.value.text, weights.value.span))
    given = fields.entry("path")
    if given is None or not isinstance(given.value, Scalar) or not isinstance(given.value.value, str):
        return fields, []
    written, span = given.value.value, given.value.span
    try:
        folder = find_published_folder(written, resolve(written, span))
        config = read_config(folder)
    except PublishedError as problem:
        return fields, [published_model(span, str(problem), problem.hint)]
    fields = _with(fields, "path", Scalar(os.path.abspath(folder), given.value.text, span))
    return _READERS[library](fields, config, span), []


def _transformers(fields: Mapping, config: dict[str, object], span: Span) -> Mapping:
    own = fields.entry("config")
    said = (
        {entry.name: entry.value for entry in own.value} if own is not None and isinstance(own.value, Mapping) else {}
    )
    if own is not None and not isinstance(own.value, Mapping):
        return fields
    values = {name: _node(value, span) for name, value in config.items()}
    return _with(fields, "config", Mapping(_entries(values | said, span), span if own is None else own.value.span))


def _timm(fields: Mapping, config: dict[str, object], span: Span) -> Mapping:
    """Return the keys of a node with the values of timm's config.json added. Format of the file: `save_for_hf` in
    https://huggingface.co/docs/timm."""
    if fields.entry("name") is None and isinstance(config.get("architecture"), str):
        fields = _with(fields, "name", _node(config["architecture"], span))
    if fields.entry("classes") is None and isinstance(config.get("num_classes"), int):
        fields = _with(fields, "classes", _node(config["num_classes"], span))
    more = config.get("model_args")
    if isinstance(more, dict) and more:
        own = fields.entry("options")
        said = (
            {each.name: each.value for each in own.value} if own is not None and isinstance(own.value, Mapping) else {}
        )
        values = {name: _node(value, span) for name, value in more.items() if name not in _SAID_ELSEWHERE}
        fields = _with(fields, "options", Mapping(_entries(values | said, span), span))
    return fields


_SAID_ELSEWHERE = (
    "in_chans",
    "num_classes",
    "pretrained",
)  # these follow from the input and from other keys of the node

_READERS = {"transformers": _transformers, "timm": _timm}


def _with(fields: Mapping, name: str, value: Node) -> Mapping:
    rest = [entry for entry in fields if entry.name != name]
    return fields.with_entries((*rest, Entry(Scalar(name, name, value.span), value)))


def _entries(values: dict[str, Node], span: Span) -> tuple[Entry, ...]:
    return tuple(Entry(Scalar(name, name, span), value) for name, value in values.items())


def _node(value: object, span: Span) -> Node:
    if isinstance(value, dict):
        return Mapping(_entries({str(name): _node(item, span) for name, item in value.items()}, span), span)
    if isinstance(value, list | tuple):
        return Sequence(tuple(_node(item, span) for item in value), span)
    return Scalar(value, str(value), span)  # type: ignore[arg-type]
