"""Nodes with the key `from`, whose params come from the config of a published model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.span import Span
from declarative_train.packs.pretrained.published import (
    Family,
    PublishedError,
    family_of,
    find_published_folder,
    params_of,
    read_config,
)
from declarative_train.recipe.checks.blocks import published_model
from declarative_train.recipe.checks.keys import wrong_type
from declarative_train.recipe.model.tree import Published
from declarative_train.source.node import Entry, Mapping, Node, Scalar, Sequence, describe_node

FROM = "from"


def read_block(
    block: str, fields: Mapping, resolve: Callable[[str, Span], str]
) -> tuple[Mapping, Published | None, list[Diagnostic]]:
    """Replace the key `from` of a node, which names a published model, by the params of that model; params that the
    node sets itself stay. Return (new keys, published model or None, diagnostics). `block`: the node's type. `fields`:
    the keys of the node as written. `resolve`: function (path, span) -> absolute path."""
    given, family = fields.entry(FROM), family_of(block)
    if given is None or family is None:
        return fields, None if family is None else Published(), []
    rest = fields.with_entries(entry for entry in fields if entry is not given)
    node = given.value
    if not isinstance(node, Scalar) or not isinstance(node.value, str) or not node.value:
        return rest, None, [wrong_type(node.span, FROM, describe_node(node), "the folder of a published model")]
    try:
        folder = find_published_folder(node.value, resolve(node.value, node.span))
        published = Published(folder, config := read_config(folder))
        params = _params(family, folder, config)
    except PublishedError as problem:
        return rest, None, [published_model(node.span, str(problem), problem.hint)]
    own = {entry.name for entry in rest}
    added = (
        Entry(Scalar(name, name, node.span), _node(value, node.span))
        for name, value in params.items()
        if name not in own and value is not None and name not in family.follows
    )
    return rest.with_entries((*rest.entries, *added)), published, []


def _params(family: Family, folder: str, config: dict[str, object]) -> dict[str, object]:
    try:
        return params_of(family, config)
    except (TypeError, ValueError, ZeroDivisionError, AttributeError) as problem:
        if isinstance(problem, PublishedError):
            raise PublishedError(f"{folder}: {problem}", problem.hint) from None
        raise PublishedError(f"{folder}: its config.json is not valid: {problem}") from None


def _node(value: object, span: Span) -> Node:
    if isinstance(value, dict):
        return Mapping(tuple(Entry(Scalar(key, key, span), _node(item, span)) for key, item in value.items()), span)
    if isinstance(value, list | tuple):
        return Sequence(tuple(_node(item, span) for item in value), span)
    return Scalar(value, str(value), span)  # type: ignore[arg-type]


def document_block(block: str) -> dict[str, Any]:
    """Return the JSON schema of the key `from`, for a block that can load published models; {} for other blocks."""
    family = family_of(block)
    if family is None:
        return {}
    about = (
        f"Of a published model ({', '.join(family.kinds)}) config.json gives the sizes: its folder, or its hub id in "
        "the cache of huggingface-hub. Keys of the node take precedence."
    )
    return {FROM: {"type": "string", "description": about}}
