"""Mapping node of a recipe -> frozen pydantic model: sections, components and nodes are all validated here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Mapping as MappingABC
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from declarative_train.diagnostics.diagnostic import Diagnostic
from declarative_train.source.node import Mapping, Scalar, to_value
from declarative_train.terms.span import Span

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
    """The model, or None and all that is wrong.

    `where` is what messages call the mapping (default: its `type` in backticks); `at` the place for keys that are
    missing (default: its `type`, else its key or the mapping); keys in `leave` are another's business and are not
    passed on, and if absent from `given` (values that somebody else read) nobody complains about them; `extra_known`
    are keys offered besides the model's own when a name is not known; `elsewhere` knows where such a name belongs
    (given the nearest known name, if there is one).
    """
    left = frozenset(leave)
    values = {entry.name: to_value(entry.value) for entry in node.entries if entry.name not in left}
    try:
        return model.model_validate({**values, **(given or {})}), []
    except ValidationError as found:
        errors = [error for error in found.errors(include_url=False) if not left.intersection(error["loc"][:1])]
    from declarative_train.recipe.mistakes.pydantic_errors import (  # which a recipe that is right does not need
        Reading,
        explain,
    )

    kept = node.without(left)
    kind = kept.get("type")
    called = where or (f"`{kind.text}`" if isinstance(kind, Scalar) else "this mapping")
    place = at or (kind.span if kind is not None else node.span)
    return None, explain(errors, kept, place, Reading(node, called, tuple(extra_known), model, elsewhere))
