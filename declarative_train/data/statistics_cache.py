"""Statistics cache: statistics of a source's rows on disk, and the record that its first values were checked.

Only for sources that detect changes of their files (`Table.fingerprint`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from declarative_train.components.data import Table
from declarative_train.data.field_reader import FieldReader
from declarative_train.files.cache import cache_path, load, save

Statistics = dict[str, dict[str, object]]
Measured = tuple[Statistics, dict[str, Any]]
"""Statistics by field, and errors by field."""
_TELLING = frozenset({"category", "tensor"})  # fields whose keys say all: others have code or files of their own


@dataclass(frozen=True, slots=True)
class StatisticsCache:
    """Cache for the rows of one set; `cut` is everything that decides which rows these are."""

    table: Table
    cut: tuple[object, ...]

    def statistics(self, parts: Sequence[FieldReader], measure: Callable[[], Measured], *, may_keep: bool) -> Measured:
        """Return the cached result of `measure`, or call it; errors are not cached."""
        place = self._place("statistics", parts) if may_keep else None
        kept: Statistics | None = load(place)
        if kept is not None:
            return kept, {}
        found, problems = measure()
        if not problems:
            save(place, found)
        return found, problems

    def check_once(self, parts: Sequence[FieldReader], look: Callable[[], None]) -> None:
        """Check the values, unless an earlier check succeeded."""
        place = self._place("looked", parts)
        if load(place) is None:
            look()
            save(place, True)

    def _place(self, kind: str, parts: Sequence[FieldReader]) -> str | None:
        if self.table.fingerprint is None or any(part.field.type not in _TELLING for part in parts):
            return None
        fields = [
            (part.name, part.field.as_data(), [list(column) for column in part.columns], dict(part.statistics))
            for part in parts
        ]
        return cache_path("rows", kind, self.table.fingerprint, self.cut, fields)
