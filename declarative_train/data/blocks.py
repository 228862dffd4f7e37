"""Blocks of a table -> blocks of the samples of a set: runs of samples that are read together."""

from __future__ import annotations

import numpy as np

from declarative_train.components.data import Table
from declarative_train.data.prepare import HOLD_BYTES, Prepared
from declarative_train.data.rolling import chosen
from declarative_train.data.rows import RowList, RowRange, Rows, RowShare
from declarative_train.data.spec import RollSpec
from declarative_train.data.windows import Windows


def sample_blocks(table: Table, rows: Rows, windows: Windows | None) -> np.ndarray | None:
    """(blocks + 1,) int64: the sample that each block begins with, and how many there are. A sample belongs to the
    block that its first row lies in. None where neighbours in the set do not lie together: the table has no blocks, or
    the rows are in another order than in the files."""
    if table.blocks is None:
        return None
    places = _places(np.asarray(table.blocks, np.int64), rows)
    if places is None:
        return None
    if windows is not None:
        run = np.searchsorted(windows.begins, places, side="right") - 1
        inside = -(-(places - windows.begins[run]) // windows.stride)  # samples that begin before the place
        counts = windows.counts[run] + np.minimum(inside, windows.counts[run + 1] - windows.counts[run])
        places = np.where(run < 0, 0, counts)
    return np.unique(places)


def most_held(table: Table, rows: Rows, windows: Windows | None, window: int | None) -> int:
    """Up to how many bytes a set is held: none if the recipe asks for a `window` of it."""
    num_samples = len(rows) if windows is None else len(windows)
    if table.blocks is None or window is None or window >= num_samples:
        return HOLD_BYTES
    return HOLD_BYTES if sample_blocks(table, rows, windows) is None else 0


def most_held_beside(training: Prepared) -> int:
    """Of the other sets that are cut from its source: where it is read in blocks, they are too, since rows from all
    over the files would be all of the files, before the first step."""
    return 0 if training.table.blocks is not None and training.held is None else HOLD_BYTES


def rolled(training: Prepared, window: int | None, streams: int | None) -> RollSpec | None:
    """How the training set is read, by the keys of the recipe; None: any sample can stand anywhere in the epoch, which
    costs nothing where all of them are held, or where the source reads any row at the cost of its bytes."""
    size, num_samples = training.size_bytes, training.num_samples
    if training.table.blocks is None or training.is_held or not num_samples or size is None:
        return None
    if size <= HOLD_BYTES if window is None else window >= num_samples:
        return None
    blocks = blocks_of(training)
    return None if blocks is None else chosen(num_samples, len(blocks) - 1, -(-size // num_samples), window, streams)


def blocks_of(prepared: Prepared) -> np.ndarray | None:
    return sample_blocks(prepared.table, prepared.rows, prepared.windows)


def _places(starts: np.ndarray, rows: Rows) -> np.ndarray | None:
    """Where the set has the first of its rows from each of these on."""
    if isinstance(rows, RowRange):
        return np.asarray(np.clip(starts, rows.start, rows.stop) - rows.start)
    if isinstance(rows, RowShare):
        return rows.before(starts)
    if isinstance(rows, RowList) and bool((np.diff(rows.numbers) > 0).all()):
        found: np.ndarray = np.searchsorted(rows.numbers, starts)
        return found
    return None
