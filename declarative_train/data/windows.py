"""Windows: samples that are runs of consecutive rows of a set, never across two groups or a gap."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from declarative_train.components.data import Candidates, Table
from declarative_train.components.splits.shares import group_order
from declarative_train.data.rows import RowChain, RowList, RowRange, SetRows
from declarative_train.data.spec import WindowSpec


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """Samples of `length` places of the set, in runs: the k-th sample of a run begins `k * stride` after the run.

    begins  (runs,) places where a run begins
    counts  (runs + 1,) number of samples in earlier runs
    """

    length: int
    stride: int
    begins: np.ndarray
    counts: np.ndarray

    def __len__(self) -> int:
        return int(self.counts[-1])

    def starts(self, samples: np.ndarray) -> np.ndarray:
        """Return int64 places where these samples begin."""
        if len(self.begins) == 1:
            return np.asarray(samples * np.int64(self.stride) + self.begins[0])
        run = np.searchsorted(self.counts, samples, side="right") - 1
        found: np.ndarray = self.begins[run] + (samples - self.counts[run]) * self.stride
        return found


@dataclass(frozen=True, slots=True, eq=False)
class RowOrder:
    """Rows of a table in the order of the windows. `order` None: the order of the file, one group."""

    order: np.ndarray | None
    sizes: np.ndarray | None  # rows per group


def row_order(table: Table, window: WindowSpec | None) -> RowOrder:
    """Return the order of the rows for windows. Raises ValueError, with the recipe's names, if they have no order."""
    if window is None or (window.by is None and window.sort is None):
        return RowOrder(None, None)

    firsts = [first for _, first in table.members] or [0]
    found = [_order_rows(table, window, first, stop) for first, stop in pairwise([*firsts, table.num_rows])]
    return RowOrder(np.concatenate([order for order, _ in found]), np.concatenate([sizes for _, sizes in found]))


def _order_rows(table: Table, window: WindowSpec, first: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Order the rows from `first` up to `stop`; two sources of a mixture have no groups in common."""

    def read(column: str) -> np.ndarray:
        return table.read([column], slice(first, stop))[column]

    size = stop - first
    order, sizes = group_order(Candidates(size, size, read, lambda _: np.empty(0, np.int64), window.by, window.sort))
    return order + first, sizes


def make_windows(rows: SetRows, window: WindowSpec, order: RowOrder) -> tuple[SetRows, Windows]:
    """Return the set's rows in the order of the windows, and the windows.

    A run ends at the end of its group, and where the next row belongs to another set.
    """
    if order.order is None or order.sizes is None:
        if isinstance(rows, RowChain):
            return _chain_windows(rows, window, order)
        if isinstance(rows, RowRange):
            return rows, _in_runs(window, np.zeros(1, np.int64), np.asarray([len(rows)]))
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
    return rows, _in_runs(window, begins, np.diff(np.append(begins, len(rows))))


def _chain_windows(rows: RowChain, window: WindowSpec, order: RowOrder) -> tuple[SetRows, Windows]:
    """Make the windows of each source of a mixture; no window holds rows of two sources."""
    found = [make_windows(piece, window, order) for piece in rows.pieces]
    before = np.cumsum([0, *(int(windows.counts[-1]) for _, windows in found)])
    begins = [windows.begins + place for (_, windows), place in zip(found, rows.begins, strict=False)]
    counts = [windows.counts[:-1] + start for (_, windows), start in zip(found, before, strict=False)]
    whole = Windows(window.length, window.stride, np.concatenate(begins), np.append(np.concatenate(counts), before[-1]))
    return RowChain(tuple(piece for piece, _ in found), rows.firsts), whole


def _in_runs(window: WindowSpec, begins: np.ndarray, lengths: np.ndarray) -> Windows:
    fits = lengths >= window.length
    counts = (lengths[fits] - window.length) // window.stride + 1
    return Windows(window.length, window.stride, begins[fits], np.concatenate([[0], np.cumsum(counts)]))
