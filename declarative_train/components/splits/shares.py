"""Splits that take a share of the rows: random rows, random rows of each value of a column, random whole groups, or the
last rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from declarative_train.components.split import Candidates, Draw, Split

if TYPE_CHECKING:
    import numpy as np


def _check_fraction(value: object) -> object:
    """Return the value if it is a fraction. Raises ValueError for a percentage or a number of rows."""
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 1:
        raise ValueError(f"{value:g} is not a fraction of the rows, which is between 0 and 1: 0.2 is 20%")
    return value


Fraction = Annotated[float, Field(gt=0, lt=1), BeforeValidator(_check_fraction)]
_LEAST_ROWS_PER_VALUE = 2  # on average, for a column of classes


class RandomSplit(Split):
    """Random rows, the same for the same seed. `validation: 0.2` is the short form."""

    turn: ClassVar[int] = 3
    cuts_singly: ClassVar[bool] = True

    type: Literal["random"] = "random"
    fraction: Fraction
    """Share of the rows (without those in sets of type `where`)."""

    def choose(self, rows: Candidates) -> Draw:
        return Draw(min(round(self.fraction * rows.num_total), rows.num_rows))


class LastSplit(Split):
    """The last rows of the source, which come after the training rows. If the window has a key `by` and this set has no
    `sort`, these are the last rows of each group. Several sets of this type follow each other in the order written."""

    turn: ClassVar[int] = 1

    type: Literal["last"] = "last"
    fraction: Fraction
    """Share of the rows (without those in sets of type `where`)."""
    sort: str | None = None
    """Column that orders all rows. Default: the order of the window, separately in each of its groups; without a window
    the order of the file."""

    @property
    def columns(self) -> tuple[str, ...]:
        return () if self.sort is None else (self.sort,)

    def choose(self, rows: Candidates) -> np.ndarray | range:
        import numpy as np

        if self.sort is None and rows.by is None and rows.sort is None:
            return range(*self._ends(rows.num_rows, rows.behind))
        if self.sort is not None:
            order, sizes = sort_order(rows.read(self.sort)), np.asarray([rows.num_rows])
        else:
            order, sizes = group_order(rows)
        chosen = []
        start = 0
        for size in sizes.tolist():
            begin, end = self._ends(size, rows.behind)
            chosen.append(order[start + begin : start + end])
            start += size
        return np.sort(np.concatenate(chosen)) if chosen else np.empty(0, np.int64)

    def _ends(self, size: int, behind: float) -> tuple[int, int]:
        """Return (begin, end) of this set among `size` ordered rows. `behind`: fraction of the rows that come after
        this set, in later sets of the type `last`. Begin and end are rounded in the same way, so that sets do not
        overlap or leave gaps."""
        return size - min(size, round(size * (behind + self.fraction))), size - min(size, round(size * behind))


def sort_order(values: np.ndarray) -> np.ndarray:
    """Return the indices that sort the values (stable). Missing text comes first. Raises ValueError if numbers or dates
    are missing."""
    import numpy as np

    if values.dtype == object:
        values = np.asarray(["" if value is None else str(value) for value in values])
    elif values.dtype.kind in "fM" and (np.isnat(values) if values.dtype.kind == "M" else np.isnan(values)).any():
        raise ValueError("it has missing values, so that its rows have no order")
    return np.argsort(values, kind="stable")


def group_order(rows: Candidates) -> tuple[np.ndarray, np.ndarray]:
    """Return the row indices sorted by group, and the number of rows of each group. A group is the rows with the same
    value in the column of the window's key `by`; without this key, all rows are one group. Within a group, rows are
    sorted by the column of the window's key `sort`; without it, they stay in the order of the source."""
    import numpy as np

    order = np.arange(rows.num_rows) if rows.sort is None else sort_order(rows.read(rows.sort))
    if rows.by is None:
        return order, np.asarray([rows.num_rows])
    group = np.unique(make_comparable(rows.read(rows.by)), return_inverse=True)[1]
    order = order[np.argsort(group[order], kind="stable")]
    return order, np.bincount(group)


def make_comparable(values: np.ndarray) -> np.ndarray:
    """Return the values of a column, converted so that they can be compared. An object column becomes texts, in which
    all missing values are the same text. Other columns are returned unchanged."""
    import numpy as np

    if values.dtype != object:
        return values
    return np.asarray(["\0" if value is None else str(value) for value in values])


class GroupedSplit(Split):
    """Random whole groups. The rows that have the same value in the column, such as a patient or a meter, are a group.
    Rows of one group are never both in this set and in the training rows, or in another random set. Sets of other types
    (`where`, `last`) may still contain rows of its groups; lint reports it."""

    turn: ClassVar[int] = 2

    type: Literal["grouped"] = "grouped"
    fraction: Fraction
    """Share of the rows (without those in sets of type `where`), as close as whole groups allow."""
    column: str
    """Column whose equal values stay together."""

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    def choose(self, rows: Candidates) -> np.ndarray:
        import numpy as np

        if not rows.num_rows:
            return np.empty(0, np.int64)
        group = np.unique(make_comparable(rows.read(self.column)), return_inverse=True)[1].ravel()
        sizes = np.bincount(group)
        order = rows.shuffled(len(sizes))
        total = np.concatenate([[0], np.cumsum(sizes[order])])
        nearest = int(np.argmin(np.abs(total - self.fraction * rows.num_total)))
        return np.flatnonzero(np.isin(group, order[:nearest]))


class StratifiedSplit(Split):
    """Random rows: the same share of the rows for each value of a column."""

    turn: ClassVar[int] = 3
    cuts_singly: ClassVar[bool] = True

    type: Literal["stratified"] = "stratified"
    fraction: Fraction
    """Share of the rows (without those in sets of type `where`)."""
    column: str
    """Column whose values keep their shares."""

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    def choose(self, rows: Candidates) -> np.ndarray:
        """Return the indices of the chosen rows: for each value of the column, the same fraction of its rows. The total
        is the rounded fraction of all rows. To reach this total, the number of rows is rounded up for the values with
        the largest remainders, and down for the others. Chance decides between equal remainders."""
        import numpy as np

        if not rows.num_rows:
            return np.empty(0, np.int64)
        values = rows.read(self.column)
        if values.dtype.kind == "f" and (fractions := np.isfinite(values) & (np.floor(values) != values)).any():
            example = values[fractions].ravel()[0]
            raise ValueError(
                f"`{self.column}` has fractional values such as {example:g}, but `stratified` needs a column of "
                "classes; without classes, use a random fraction"
            )
        kind = np.unique(make_comparable(values), return_inverse=True)[1].ravel()
        sizes = np.bincount(kind)
        if rows.num_rows < _LEAST_ROWS_PER_VALUE * len(sizes):
            raise ValueError(
                f"`{self.column}` has {len(sizes):,} values in {rows.num_rows:,} rows: an id rather than a class; "
                "name the column of the classes, or use a random fraction"
            )
        wanted = min(round(self.fraction * rows.num_total), rows.num_rows)
        share, remainder = np.divmod(sizes * wanted, rows.num_rows)
        by_chance = rows.shuffled(len(sizes))
        largest = by_chance[np.argsort(-remainder[by_chance], kind="stable")]
        share[largest[: wanted - int(share.sum())]] += 1
        order = rows.shuffled(rows.num_rows)
        order = order[np.argsort(kind[order], kind="stable")]
        place = np.arange(rows.num_rows) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return np.sort(order[place < np.repeat(share, sizes)])
