"""Nodes with `from:`: the params of their block come from the config of a published model."""

from __future__ import annotations

from typing import NamedTuple

from declarative_train.components.published import (
    Family,
    PublishedError,
    family_of,
    find_published_folder,
    params_of,
    read_config,
)
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.span import Span
from declarative_train.recipe.checks.blocks import published_model
from declarative_train.recipe.checks.keys import wrong_type
from declarative_train.recipe.paths import Paths
from declarative_train.source.node import Entry, Mapping, Node, Scalar, Sequence, describe_node

FROM = "from"


class Published(NamedTuple):
    """Published model that a node refers to: its folder and its config."""

    folder: str
    config: dict[str, object]


def resolve_published_fields(
    block: str, fields: Mapping, paths: Paths
) -> tuple[Mapping, Published | None, list[Diagnostic]]:
    """Return the keys of a node with `from` replaced by the params that the published model has; keys that the node
    gives itself win."""
    given, family = fields.entry(FROM), family_of(block)
    if given is None or family is None:
        return fields, None, []
    rest = fields.with_entries(entry for entry in fields if entry is not given)
    node = given.value
    if not isinstance(node, Scalar) or not isinstance(node.value, str) or not node.value:
        return rest, None, [wrong_type(node.span, FROM, describe_node(node), "the folder of a published model")]
    try:
        folder = find_published_folder(node.value, paths.resolve(node.value, node.span))
        published = Published(folder, read_config(folder))
        params = _params(family, published)
    except PublishedError as problem:
        return rest, None, [published_model(node.span, str(problem), problem.hint)]
    own = {entry.name for entry in rest}
    added = (
        Entry(Scalar(name, name, node.span), _node(value, node.span))
        for name, value in params.items()
        if name not in own and value is not None and name not in family.follows
    )
    return rest.with_entries((*rest.entries, *added)), published, []


def _params(family: Family, published: Published) -> dict[str, object]:
    try:
        return params_of(family, published.config)
    except (TypeError, ValueError, ZeroDivisionError, AttributeError) as problem:
        if isinstance(problem, PublishedError):
            raise PublishedError(f"{published.folder}: {problem}", problem.hint) from None
        raise PublishedError(f"{published.folder}: its config.json is not valid: {problem}") from None


def _node(value: object, span: Span) -> Node:
    if isinstance(value, dict):
        return Mapping(tuple(Entry(Scalar(key, key, span), _node(item, span)) for key, item in value.items()), span)
    if isinstance(value, list | tuple):
        return Sequence(tuple(_node(item, span) for item in value), span)
    return Scalar(value, str(value), span)  # type: ignore[arg-type]
