"""Rows of a set: the row numbers of a table that belong to a set, in the set's order, in little memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from declarative_train.components.counter_rng import key_of
from declarative_train.data.order import permute


class SetRows(ABC):
    """Row numbers by their place in the set."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def at(self, places: np.ndarray) -> np.ndarray:
        """Return int64 row numbers at these places."""

    @abstractmethod
    def between(self, start: int, stop: int) -> slice | np.ndarray:
        """Return the row numbers from place `start` up to `stop`, in the form that `Table.read` takes."""

    def chunks(self, size: int) -> Iterator[tuple[int, slice | np.ndarray]]:
        """Yield all rows, `size` at a time, each with its first place."""
        for start in range(0, len(self), size):
            yield start, self.between(start, min(start + size, len(self)))

    def pick(self, places: np.ndarray) -> SetRows:
        return RowList(self.at(places))


@dataclass(frozen=True, slots=True)
class RowRange(SetRows):
    """Consecutive rows."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def at(self, places: np.ndarray) -> np.ndarray:
        return np.asarray(places, np.int64) + self.start

    def between(self, start: int, stop: int) -> slice:
        return slice(self.start + start, self.start + stop)


@dataclass(frozen=True, slots=True, eq=False)
class RowList(SetRows):
    """Arbitrary rows, by number."""

    numbers: np.ndarray

    def __len__(self) -> int:
        return len(self.numbers)

    def at(self, places: np.ndarray) -> np.ndarray:
        found: np.ndarray = self.numbers[places]
        return found

    def between(self, start: int, stop: int) -> np.ndarray:
        return self.numbers[start:stop]


@dataclass(frozen=True, slots=True, eq=False)
class RowChain(SetRows):
    """Rows of several tables that are concatenated. `firsts`: the first row of each table."""

    pieces: tuple[SetRows, ...]
    firsts: tuple[int, ...]

    @property
    def begins(self) -> np.ndarray:
        """Places at which the pieces begin, (pieces + 1,)."""
        return np.cumsum([0, *map(len, self.pieces)])

    def __len__(self) -> int:
        return sum(map(len, self.pieces))

    def at(self, places: np.ndarray) -> np.ndarray:
        places, begins = np.asarray(places, np.int64), self.begins
        piece = np.searchsorted(begins, places, side="right") - 1
        found = np.empty(len(places), np.int64)
        for each in np.unique(piece).tolist():
            mine = piece == each
            found[mine] = self.pieces[each].at(places[mine] - begins[each]) + self.firsts[each]
        return found

    def between(self, start: int, stop: int) -> slice | np.ndarray:
        found: list[slice | np.ndarray] = []
        for piece, first, begin in zip(self.pieces, self.firsts, self.begins.tolist(), strict=False):
            inside = max(start - begin, 0), min(stop - begin, len(piece))
            if inside[0] < inside[1]:
                rows = piece.between(*inside)
                found.append(slice(rows.start + first, rows.stop + first) if isinstance(rows, slice) else rows + first)
        if len(found) == 1:
            return found[0]
        listed = [np.arange(each.start, each.stop) if isinstance(each, slice) else each for each in found]
        return np.concatenate(listed) if listed else np.empty(0, np.int64)

    def pick(self, places: np.ndarray) -> SetRows:
        """Return the rows at ascending places; the rows of each table stay separate."""
        cuts = np.searchsorted(places, self.begins[1:-1])
        parts = zip(self.pieces, np.split(places, cuts), self.begins.tolist(), strict=False)
        return RowChain(tuple(piece.pick(mine - begin) for piece, mine, begin in parts), self.firsts)


@dataclass(frozen=True, slots=True)
class RowDraw(SetRows):
    """Places of a random permutation of other rows, for sets too large to list; not in the order of the file."""

    base: SetRows
    key: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def at(self, places: np.ndarray) -> np.ndarray:
        return self.base.at(permute(self.key, np.asarray(places, np.int64) + self.start, len(self.base)))

    def between(self, start: int, stop: int) -> np.ndarray:
        return self.at(np.arange(start, stop))


@dataclass(frozen=True, slots=True, eq=False)
class RowShare(SetRows):
    """Random share of each block of rows, in the order of the file: for sets too large to list that are read in blocks.
    Of the first n rows of `base`, where n is a block's end, round(n * fraction) are taken.

    starts   (blocks + 1,) first row of each block, from row 0 on
    base     rows of which this is a share; None: all rows
    others   True for the rows of the base that are not in the share
    counts   (blocks + 1,) number of these rows before each block
    """

    starts: np.ndarray
    base: RowShare | None
    key: int
    others: bool
    counts: np.ndarray

    @classmethod
    def of(cls, starts: np.ndarray, base: RowShare | None, key: int, num_rows: int, others: bool) -> RowShare:
        """Return a share of `num_rows` rows of `base`, or the others."""
        whole = starts if base is None else base.counts
        taken = np.floor(whole * (num_rows / max(int(whole[-1]), 1)) + 0.5).astype(np.int64)
        taken[-1] = num_rows
        return cls(starts, base, key, others, whole - taken if others else taken)

    def __len__(self) -> int:
        return int(self.counts[-1])

    def before(self, rows: np.ndarray) -> np.ndarray:
        """Return how many rows of the set come before these rows, each the start of a block, or the end."""
        found: np.ndarray = self.counts[np.searchsorted(self.starts, np.minimum(rows, self.starts[-1]))]
        return found

    def at(self, places: np.ndarray) -> np.ndarray:
        places = np.asarray(places, np.int64)
        block = np.searchsorted(self.counts, places, side="right") - 1
        found = np.empty(len(places), np.int64)
        for each in np.unique(block).tolist():
            mine = block == each
            found[mine] = self._of_block(each)[places[mine] - self.counts[each]]
        return found

    def between(self, start: int, stop: int) -> np.ndarray:
        if start >= stop:
            return np.empty(0, np.int64)
        first = int(np.searchsorted(self.counts, start, side="right")) - 1
        last = int(np.searchsorted(self.counts, stop, side="left"))
        found = np.concatenate([self._of_block(block) for block in range(first, last)])
        return found[start - self.counts[first] : stop - self.counts[first]]

    def _of_block(self, block: int) -> np.ndarray:
        rows = np.arange(*self.starts[block : block + 2]) if self.base is None else self.base._of_block(block)
        own = int(self.counts[block + 1] - self.counts[block])
        drawn = permute(key_of(self.key, block), np.arange(len(rows)), len(rows))
        found: np.ndarray = rows[np.sort(drawn[len(rows) - own :] if self.others else drawn[:own])]
        return found
