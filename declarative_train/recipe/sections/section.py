"""Base of all sections of a recipe: frozen, closed, strict; docs under the fields become the JSON schema."""

from collections.abc import Iterator
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A mapping of a recipe whose keys are all known."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        defer_build=True,
        arbitrary_types_allowed=True,
        allow_inf_nan=False,
    )

    inline: ClassVar[str | None] = None
    """Field that takes every key which the section itself does not have: the component of a loss term, whose keys are
    in the same mapping as `input` and `weight`.
    """
    short_forms: ClassVar[tuple[str, ...]] = ()
    """Keys that are expanded before the section is read (`recipe/merge_rules.py`)."""


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models that a field with this annotation may hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from models_in(argument)
