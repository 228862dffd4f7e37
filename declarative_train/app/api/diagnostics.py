"""Diagnostics of a recipe, for Python and notebooks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import overload

from declarative_train.app.api.display import diagnostics_html
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.diagnostics.render import Format, arrange, render


class Diagnostics(Sequence[Diagnostic]):
    """Sequence of the diagnostics of a recipe, sorted by their position in the files; empty if nothing is wrong. Its
    `repr` is the text that `dtrain lint` prints."""

    def __init__(self, found: Sequence[Diagnostic], texts: Mapping[str, str]) -> None:
        self._found = tuple(arrange(found))
        self._texts = texts

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        """Diagnostics that prevent a run."""
        return tuple(each for each in self._found if each.is_error)

    def render(self, format: Format = "full") -> str:
        """Return the diagnostics as text in a format of `dtrain lint --format`: full, concise, json, github, sarif,
        junit."""
        return render(self._found, self._texts, format=format)

    @overload
    def __getitem__(self, index: int) -> Diagnostic: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Diagnostic]: ...
    def __getitem__(self, index: int | slice) -> Diagnostic | Sequence[Diagnostic]:
        return self._found[index]

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[Diagnostic]:
        return iter(self._found)

    def __repr__(self) -> str:
        return self.render().rstrip() or "nothing wrong"

    def _repr_html_(self) -> str:
        return diagnostics_html(repr(self))
