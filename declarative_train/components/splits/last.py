"""The last share of the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from declarative_train.components.data import Candidates, Split
from declarative_train.components.splits.random import Fraction

if TYPE_CHECKING:
    import numpy as np


class LastSplit(Split):
    """The last rows: what comes after the rows that train. Several of them follow each other in the order written."""

    turn: ClassVar[int] = 1

    type: Literal["last"] = "last"
    fraction: Fraction
    """Share of the rows (of those that sets cut by `where` leave)."""
    sort: str | None = None
    """The column that orders all rows. Left out: the order of the window, each of its groups by itself; without a
    window the order of the file."""

    @property
    def columns(self) -> tuple[str, ...]:
        return () if self.sort is None else (self.sort,)

    def choose(self, rows: Candidates) -> np.ndarray | range:
        import numpy as np

        if self.sort is None and rows.by is None and rows.sort is None:
            return range(*self._ends(rows.num_rows, rows.behind))
        if self.sort is not None:
            order, sizes = ordered(rows.read(self.sort)), np.asarray([rows.num_rows])
        else:
            order, sizes = grouped(rows)
        chosen = []
        start = 0
        for size in sizes.tolist():
            begin, end = self._ends(size, rows.behind)
            chosen.append(order[start + begin : start + end])
            start += size
        return np.sort(np.concatenate(chosen)) if chosen else np.empty(0, np.int64)

    def _ends(self, size: int, behind: float) -> tuple[int, int]:
        """Rounded the same way from the end for every set, so that neighbours meet."""
        return size - min(size, round(size * (behind + self.fraction))), size - min(size, round(size * behind))


def ordered(values: np.ndarray) -> np.ndarray:
    """The stable order of values; text without a value first. Raises ValueError when numbers or dates are missing."""
    import numpy as np

    if values.dtype == object:
        values = np.asarray(["" if value is None else str(value) for value in values])
    elif values.dtype.kind in "fM" and (np.isnat(values) if values.dtype.kind == "M" else np.isnan(values)).any():
        raise ValueError("it misses values, so that its rows have no order")
    return np.argsort(values, kind="stable")


def grouped(rows: Candidates) -> tuple[np.ndarray, np.ndarray]:
    """The rows group by group, each in the window's order, and the groups' sizes."""
    import numpy as np

    order = np.arange(rows.num_rows) if rows.sort is None else ordered(rows.read(rows.sort))
    if rows.by is None:
        return order, np.asarray([rows.num_rows])
    group = np.unique(codes(rows.read(rows.by)), return_inverse=True)[1]
    order = order[np.argsort(group[order], kind="stable")]
    return order, np.bincount(group)


def codes(values: np.ndarray) -> np.ndarray:
    """Values that can be compared: text as text, missing text a value of its own."""
    import numpy as np

    if values.dtype != object:
        return values
    return np.asarray(["\0" if value is None else str(value) for value in values])
