"""What a look at the rows of a source gave, kept for the next time: statistics, and that the first values are as fields
take them. Only of sources that know when their files are others (`Table.fingerprint`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from declarative_train.components.data import Table
from declarative_train.data.field_reader import Part
from declarative_train.files.cache import cache_path, load, save

Statistics = dict[str, dict[str, object]]
Measured = tuple[Statistics, dict[str, Any]]
"""Statistics by field, and what went wrong with which."""
_TELLING = frozenset({"category", "tensor"})  # fields whose keys say all: others have code or files of their own


@dataclass(frozen=True, slots=True)
class Known:
    """Of the rows of one set: `cut` is all that decides which they are."""

    table: Table
    cut: tuple[object, ...]

    def statistics(self, parts: Sequence[Part], measure: Callable[[], Measured], *, may_keep: bool) -> Measured:
        """What `measure` gives, or gave: what went wrong is not kept."""
        place = self._place("statistics", parts) if may_keep else None
        kept: Statistics | None = load(place)
        if kept is not None:
            return kept, {}
        found, problems = measure()
        if not problems:
            save(place, found)
        return found, problems

    def looked(self, parts: Sequence[Part], look: Callable[[], None]) -> None:
        """Look, unless that was done."""
        place = self._place("looked", parts)
        if load(place) is None:
            look()
            save(place, True)

    def _place(self, kind: str, parts: Sequence[Part]) -> str | None:
        if self.table.fingerprint is None or any(part.field.type not in _TELLING for part in parts):
            return None
        fields = [
            (part.name, part.field.as_data(), [list(column) for column in part.columns], dict(part.statistics))
            for part in parts
        ]
        return cache_path("rows", kind, self.table.fingerprint, self.cut, fields)
