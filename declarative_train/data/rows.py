"""Rows of a set, and samples that are windows of consecutive rows.

A row has an index in the set, and a *row number*, its index in the table. For example, the set with the last 3 of 10
rows is RowRange(7, 10): its row with the index 0 has the row number 7. With windows of 2 rows and stride 1, the set has
2 samples, which begin at the indices 0 and 1. The row numbers of a large set are computed, not stored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from declarative_train.components.counter_rng import key_of
from declarative_train.components.data import Table
from declarative_train.components.split import Candidates
from declarative_train.components.splits.shares import group_order
from declarative_train.data.order import permute
from declarative_train.data.spec import WindowSpec


class SetRows(ABC):
    """Rows of a set: for each index in the set, the row number (the index in the table)."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def at(self, indices: np.ndarray) -> np.ndarray:
        """Return the row numbers (indices in the table, int64) of the rows with these `indices` in the set."""

    @abstractmethod
    def between(self, start: int, stop: int) -> slice | np.ndarray:
        """Return the row numbers of the set's rows with the indices `start` to `stop` - 1, as a slice or an array."""

    def chunks(self, size: int) -> Iterator[tuple[int, slice | np.ndarray]]:
        """Yield (index in the set of the first row, row numbers) for each chunk of at most `size` rows."""
        for start in range(0, len(self), size):
            yield start, self.between(start, min(start + size, len(self)))

    def pick(self, indices: np.ndarray) -> SetRows:
        """Return a set with only some of the rows of this set. `indices`: their indices in this set, in ascending
        order."""
        return RowList(self.at(indices))


@dataclass(frozen=True, slots=True)
class RowRange(SetRows):
    """Rows of a set that are consecutive in the table: row `start` to row `stop` - 1."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def at(self, indices: np.ndarray) -> np.ndarray:
        return np.asarray(indices, np.int64) + self.start

    def between(self, start: int, stop: int) -> slice:
        return slice(self.start + start, self.start + stop)


@dataclass(frozen=True, slots=True, eq=False)
class RowList(SetRows):
    """Rows of a set as a list of row numbers."""

    numbers: np.ndarray

    def __len__(self) -> int:
        return len(self.numbers)

    def at(self, indices: np.ndarray) -> np.ndarray:
        found: np.ndarray = self.numbers[indices]
        return found

    def between(self, start: int, stop: int) -> np.ndarray:
        return self.numbers[start:stop]


@dataclass(frozen=True, slots=True, eq=False)
class RowChain(SetRows):
    """Rows of a set whose table is the concatenation of several tables (a mixture). `pieces`: for each table, the set's
    rows as row numbers of that table. `firsts`: for each table, its first row as a row number of the concatenation."""

    pieces: tuple[SetRows, ...]
    firsts: tuple[int, ...]

    @property
    def begins(self) -> np.ndarray:
        """Array (tables + 1,): index in the set of each table's first row, then the number of all rows of the set."""
        return np.cumsum([0, *map(len, self.pieces)])

    def __len__(self) -> int:
        return sum(map(len, self.pieces))

    def at(self, indices: np.ndarray) -> np.ndarray:
        indices, begins = np.asarray(indices, np.int64), self.begins
        piece = np.searchsorted(begins, indices, side="right") - 1
        found = np.empty(len(indices), np.int64)
        for each in np.unique(piece).tolist():
            mine = piece == each
            found[mine] = self.pieces[each].at(indices[mine] - begins[each]) + self.firsts[each]
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

    def pick(self, indices: np.ndarray) -> SetRows:
        cuts = np.searchsorted(indices, self.begins[1:-1])
        parts = zip(self.pieces, np.split(indices, cuts), self.begins.tolist(), strict=False)
        return RowChain(tuple(piece.pick(mine - begin) for piece, mine, begin in parts), self.firsts)


@dataclass(frozen=True, slots=True)
class RowDraw(SetRows):
    """Random rows of `base`: entries `start` to `stop` - 1 of the random permutation of `base` that `key` determines.
    They are computed when needed, because a list of them could be too large."""

    base: SetRows
    key: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def at(self, indices: np.ndarray) -> np.ndarray:
        return self.base.at(permute(self.key, np.asarray(indices, np.int64) + self.start, len(self.base)))

    def between(self, start: int, stop: int) -> np.ndarray:
        return self.at(np.arange(start, stop))


@dataclass(frozen=True, slots=True, eq=False)
class RowShare(SetRows):
    """Rows of a set: a random share of the rows `base`, or all other rows of `base`. For sets too large to list.

    The share is about the same in every block: of the n rows up to the end of any block, round(n * share) are drawn.

    starts   (blocks + 1,) index of the first row of each block, then the end of the last block
    base     the rows from which the share is drawn; None: all rows of these blocks
    key      decides which rows are drawn
    others   the set has the rows of `base` that are not drawn
    counts   (blocks + 1,) number of rows of the set before each block; last, the number of all its rows"""

    starts: np.ndarray
    base: RowShare | None
    key: int
    others: bool
    counts: np.ndarray

    @classmethod
    def of(cls, starts: np.ndarray, base: RowShare | None, key: int, num_rows: int, others: bool) -> RowShare:
        """Choose `num_rows` rows of `base` at random, and return them or, with `others`, all other rows of `base`.
        `base`: None for all rows of the table. `key`: seed. `starts` (blocks + 1,): index of the first row of each
        block, then the end of the last block."""
        whole = starts if base is None else base.counts
        taken = np.floor(whole * (num_rows / max(int(whole[-1]), 1)) + 0.5).astype(np.int64)
        taken[-1] = num_rows
        return cls(starts, base, key, others, whole - taken if others else taken)

    def __len__(self) -> int:
        return int(self.counts[-1])

    def before(self, rows: np.ndarray) -> np.ndarray:
        """Return, for each of the row numbers `rows`, how many rows of the set have a smaller number. Each entry of
        `rows` must be the first row of a block, or the end of the last block."""
        found: np.ndarray = self.counts[np.searchsorted(self.starts, np.minimum(rows, self.starts[-1]))]
        return found

    def at(self, indices: np.ndarray) -> np.ndarray:
        indices = np.asarray(indices, np.int64)
        block = np.searchsorted(self.counts, indices, side="right") - 1
        found = np.empty(len(indices), np.int64)
        for each in np.unique(block).tolist():
            mine = block == each
            found[mine] = self._of_block(each)[indices[mine] - self.counts[each]]
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


@dataclass(frozen=True, slots=True, eq=False)
class RowWindows:
    """Samples that are windows of `length` consecutive rows of a set.

    The set is divided into segments of consecutive rows, and each window is within one segment. Window k of a segment,
    from 0, begins `k * stride` rows after the start of the segment.

    begins   (segments,) index in the set at which each segment begins
    counts   (segments + 1,) number of samples in all segments before each segment; last, the number of all samples
    """

    length: int
    stride: int
    begins: np.ndarray
    counts: np.ndarray

    def __len__(self) -> int:
        return int(self.counts[-1])

    def starts(self, samples: np.ndarray) -> np.ndarray:
        """Return, for each of `samples`, the index in the set of its first row, int64."""
        if len(self.begins) == 1:
            return np.asarray(samples * np.int64(self.stride) + self.begins[0])
        segment = np.searchsorted(self.counts, samples, side="right") - 1
        found: np.ndarray = self.begins[segment] + (samples - self.counts[segment]) * self.stride
        return found


@dataclass(frozen=True, slots=True, eq=False)
class RowOrder:
    """Order of a table's rows for windows.

    `order`: the row numbers in this order, group after group. `sizes`: the number of rows of each group; no window
    extends over two groups. Both are None if all rows are one group, in the order of the file.
    """

    order: np.ndarray | None
    sizes: np.ndarray | None  # rows per group


def row_order(table: Table, window: WindowSpec | None) -> RowOrder:
    """Return the order of a table's rows for windows. Raises ValueError if the values of a column that defines the
    order cannot be sorted; the message names the key of the recipe."""
    if window is None or (window.by is None and window.sort is None):
        return RowOrder(None, None)

    firsts = [first for _, first in table.members] or [0]
    found = [_order_rows(table, window, first, stop) for first, stop in pairwise([*firsts, table.num_rows])]
    return RowOrder(np.concatenate([order for order, _ in found]), np.concatenate([sizes for _, sizes in found]))


def _order_rows(table: Table, window: WindowSpec, first: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows `first` to `stop` - 1 in the order from which windows are cut (grouped by `window.by`, sorted by
    `window.sort`), and the number of rows of each group. In a mixture, these are the rows of one source."""

    def read(column: str) -> np.ndarray:
        return table.read([column], slice(first, stop))[column]

    size = stop - first
    order, sizes = group_order(Candidates(size, size, read, lambda _: np.empty(0, np.int64), window.by, window.sort))
    return order + first, sizes


def make_windows(rows: SetRows, window: WindowSpec, order: RowOrder) -> tuple[SetRows, RowWindows]:
    """Return (rows, windows): the rows of a set in the order from which windows are cut, and the windows. The rows of a
    window belong to the same group of `order`, and no row of another set is between them."""
    if order.order is None or order.sizes is None:
        if isinstance(rows, RowChain):
            return _chain_windows(rows, window, order)
        if isinstance(rows, RowRange):
            return rows, _divide_segments(window, np.zeros(1, np.int64), np.asarray([len(rows)]))
        ranks = rows.at(np.arange(len(rows)))
        breaks = np.flatnonzero(np.diff(ranks) != 1) + 1
    else:
        rank_of = np.empty(len(order.order), np.int64)
        rank_of[order.order] = np.arange(len(order.order))
        ranks = np.sort(rank_of[rows.at(np.arange(len(rows)))])
        group = np.repeat(np.arange(len(order.sizes)), order.sizes)[ranks]
        rows = RowList(order.order[ranks])
        breaks = np.flatnonzero((np.diff(ranks) != 1) | (np.diff(group) != 0)) + 1
    begins = np.concatenate([[0], breaks])
    return rows, _divide_segments(window, begins, np.diff(np.append(begins, len(rows))))


def _chain_windows(rows: RowChain, window: WindowSpec, order: RowOrder) -> tuple[SetRows, RowWindows]:
    """Return the rows of a mixture's set in the order of its windows, and the windows. They are made for each source
    separately, so that no window has rows of two sources."""
    found = [make_windows(piece, window, order) for piece in rows.pieces]
    before = np.cumsum([0, *(int(windows.counts[-1]) for _, windows in found)])
    begins = [windows.begins + begin for (_, windows), begin in zip(found, rows.begins, strict=False)]
    counts = [windows.counts[:-1] + start for (_, windows), start in zip(found, before, strict=False)]
    whole = RowWindows(
        window.length, window.stride, np.concatenate(begins), np.append(np.concatenate(counts), before[-1])
    )
    return RowChain(tuple(piece for piece, _ in found), rows.firsts), whole


def _divide_segments(window: WindowSpec, begins: np.ndarray, lengths: np.ndarray) -> RowWindows:
    """Return the windows in segments with these `lengths`, which begin at the indices `begins` of the set."""
    fits = lengths >= window.length
    counts = (lengths[fits] - window.length) // window.stride + 1
    return RowWindows(window.length, window.stride, begins[fits], np.concatenate([[0], np.cumsum(counts)]))
