"""Base class of all sections of a recipe: frozen, strict pydantic models that accept no unknown keys. The docstrings
under their fields become descriptions in the JSON schema.
"""

from collections.abc import Iterator
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, create_model

from declarative_train.core.packs import find_packs, load


class Section(BaseModel):
    """Mapping of a recipe in which unknown keys are errors."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        defer_build=True,
        arbitrary_types_allowed=True,
        allow_inf_nan=False,
    )

    inline: ClassVar[str | None] = None
    """Name of the field that gets all keys which the section itself does not have, or None. In a loss term, it is the
    loss component, whose keys are in the same mapping as `input` and `weight`.
    """
    short_forms: ClassVar[tuple[str, ...]] = ()
    """Keys that are replaced by their long forms before the section is read (`recipe/merge_rules.py`)."""


def with_pack_keys(name: str, section: type[Section]) -> Any:
    """Return the class of a section with the keys that packs add to it. `name`: name of the section; `section`: its
    class without these keys. Raises PackError.
    """
    more = tuple(load(pack.keys[name]) for pack in find_packs().values() if name in pack.keys)
    if not more:
        return section
    return create_model(
        section.__name__, __base__=(*reversed(more), section), __module__=section.__module__, __doc__=section.__doc__
    )


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the pydantic classes in a type annotation, such as A and B in `A | list[B]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from models_in(argument)
