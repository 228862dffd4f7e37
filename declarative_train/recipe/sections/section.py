"""What every section of a recipe shares: frozen, closed, strict; docs under the fields become the JSON schema."""

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
    """The field that takes every key which the section has not itself: the component of a loss term, whose own keys
    stand beside `input` and `weight`."""
    short_forms: ClassVar[tuple[str, ...]] = ()
    """Keys that are written out before the section is read (`recipe/merge_rules.py`)."""


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models that a field with this annotation may hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from models_in(argument)
