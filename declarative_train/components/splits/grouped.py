"""A share of the groups, by chance."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from declarative_train.components.component import Candidates, Split
from declarative_train.components.splits.last import codes
from declarative_train.components.splits.random import Fraction

if TYPE_CHECKING:
    import numpy as np


class GroupedSplit(Split):
    """Whole groups by chance: rows that share a value (a patient, a meter) never land both in this set and among those
    that train, nor in a set cut by chance, whatever the order of the sets. Sets cut in another way (`where`, `last`)
    may hold rows of its groups; lint says so.
    """

    turn: ClassVar[int] = 2

    type: Literal["grouped"] = "grouped"
    fraction: Fraction
    """Share of the rows (of those that sets cut by `where` leave), as near as whole groups come to it."""
    column: str
    """The column whose equal values stay together."""

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    def choose(self, rows: Candidates) -> np.ndarray:
        import numpy as np

        if not rows.num_rows:
            return np.empty(0, np.int64)
        group = np.unique(codes(rows.read(self.column)), return_inverse=True)[1].ravel()
        sizes = np.bincount(group)
        order = rows.shuffled(len(sizes))
        total = np.concatenate([[0], np.cumsum(sizes[order])])
        nearest = int(np.argmin(np.abs(total - self.fraction * rows.num_total)))
        return np.flatnonzero(np.isin(group, order[:nearest]))
