"""The data section of a recipe, as this room reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from declarative_train.components.component import Dataset, Field, Split
from declarative_train.terms.span import Span

Place = Callable[[str | tuple[str | int, ...]], Span]
"""Where the value at a dotted path (or a tuple of its parts) was typed, else its nearest ancestor."""


class WindowLike(Protocol):
    @property
    def length(self) -> int: ...
    @property
    def stride(self) -> int | None: ...
    @property
    def by(self) -> str | None: ...
    @property
    def sort(self) -> str | None: ...


class SectionLike(Protocol):
    """The data section of a recipe."""

    @property
    def source(self) -> Dataset: ...
    @property
    def fields(self) -> Mapping[str, Field]: ...
    @property
    def split(self) -> Mapping[str, Split]: ...
    @property
    def window(self) -> WindowLike | None: ...
    @property
    def shuffle(self) -> bool: ...
    @property
    def workers(self) -> int: ...
    @property
    def last_batch(self) -> str: ...
