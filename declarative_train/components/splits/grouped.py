"""Shares by chance that heed a column: of whole groups, or of the rows of every class."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from declarative_train.components.data import Candidates, Split
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


class StratifiedSplit(Split):
    """Rows by chance, the same share of each value of a column."""

    turn: ClassVar[int] = 3
    cuts_singly: ClassVar[bool] = True

    type: Literal["stratified"] = "stratified"
    fraction: Fraction
    """Share of the rows (of those that sets cut by `where` leave)."""
    column: str
    """The column whose values keep their shares."""

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    def choose(self, rows: Candidates) -> np.ndarray:
        """Whole rows per value by largest remainder, so that the whole comes to the fraction."""
        import numpy as np

        if not rows.num_rows:
            return np.empty(0, np.int64)
        values = rows.read(self.column)
        if values.dtype.kind == "f" and (fractions := np.isfinite(values) & (np.floor(values) != values)).any():
            example = values[fractions].ravel()[0]
            raise ValueError(
                f"`{self.column}` holds fractions such as {example:g}, and rows are shared out by the values of a "
                "class; without classes, take a random fraction"
            )
        kind = np.unique(codes(values), return_inverse=True)[1].ravel()
        sizes = np.bincount(kind)
        wanted = min(round(self.fraction * rows.num_total), rows.num_rows)
        exact = sizes * (wanted / rows.num_rows)
        share = np.floor(exact).astype(np.int64)
        most_left = np.argsort(share - exact, kind="stable")
        share[most_left[: wanted - int(share.sum())]] += 1
        order = rows.shuffled(rows.num_rows)
        order = order[np.argsort(kind[order], kind="stable")]
        place = np.arange(rows.num_rows) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return np.sort(order[place < np.repeat(share, sizes)])
