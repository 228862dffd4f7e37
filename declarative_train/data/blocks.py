"""Blocks of samples: runs of samples that are read together, from the blocks of a table."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

import numpy as np

from declarative_train.components.data import Table
from declarative_train.data.block_shuffle import LEAST_BYTES, POOL_BYTES, fit_roll
from declarative_train.data.materialize import HOLD_BYTES, PreparedSet
from declarative_train.data.mixing import MixedOrder, shares
from declarative_train.data.rows import RowChain, RowList, RowRange, RowShare, SetRows
from declarative_train.data.spec import DataError, DataSpec, MemberSpec, RollSpec
from declarative_train.data.windows import Windows

MOST_SAMPLES = 1 << 17  # of a block that may be cut: windows of a text that overlap are many in a few bytes


def sample_blocks(table: Table, rows: SetRows, windows: Windows | None) -> np.ndarray | None:
    """Return (blocks + 1,) int64: the first sample of each block, and the number of samples.

    A sample belongs to the block of its first row. None if consecutive samples are not stored together: the table has
    no blocks, or the rows are in another order than in the files.
    """
    if table.blocks is None:
        return None
    places = _places(np.asarray(table.blocks, np.int64), rows)
    return None if places is None else np.unique(_samples_before(places, windows))


def _samples_before(places: np.ndarray, windows: Windows | None) -> np.ndarray:
    """Return how many samples begin before each of these places."""
    if windows is None or not len(windows.begins):
        return places if windows is None else np.zeros_like(places)
    run = np.searchsorted(windows.begins, places, side="right") - 1
    inside = -(-(places - windows.begins[run]) // windows.stride)
    counts = windows.counts[run] + np.minimum(inside, windows.counts[run + 1] - windows.counts[run])
    return np.where(run < 0, 0, counts)


def sources_in(prepared: PreparedSet) -> np.ndarray:
    """Return (sources + 1,) int64 for a mixture: the first sample of each source in the set, and the number of samples.

    A set keeps the rows of one source together, in any order of rows.
    """
    rows = prepared.rows
    places = [bisect_left(range(len(rows)), first, key=_row_of(rows)) for _, first in prepared.table.members]
    return _samples_before(np.asarray([*places, len(rows)], np.int64), prepared.windows)


def make_mixed_order(spec: DataSpec, training: PreparedSet, batch_size: int) -> MixedOrder:
    """Return the order of a mixture. Raises DataError."""
    starts = sources_in(training)
    if np.diff(starts).tolist() != [member.num_samples for member in spec.mix]:
        raise DataError("the sources of the mixture have other numbers of samples than when the plan was made")
    blocks = blocks_of(training) if spec.rolls else None
    return MixedOrder(spec.seed, spec.mix, starts, blocks, batch_size, shuffle=spec.shuffle)


def _row_of(rows: SetRows) -> Callable[[int], int]:
    return lambda place: int(rows.at(np.asarray([place]))[0])


def list_members(
    training: PreparedSet, weights: Sequence[float | None], window: int | None, streams: int | None, *, shuffle: bool
) -> tuple[MemberSpec, ...]:
    """Return the sources of a mixture as the training set has them.

    `window` and `streams` are as in `choose_roll`; the memory is divided by the shares of the sources.
    """
    starts = sources_in(training)
    sizes = np.diff(starts).tolist()
    parts = shares(weights, sizes)
    size, blocks = training.size_bytes, blocks_of(training) if shuffle else None
    is_small = size is None or (size <= HOLD_BYTES if window is None else window >= training.num_samples)
    found = []
    for number, (name, _) in enumerate(training.table.members):
        roll = None
        if blocks is not None and size is not None and not training.is_held and not is_small:
            own = blocks[(blocks >= starts[number]) & (blocks < starts[number + 1])]
            part = parts[number] / sum(parts)
            sample_bytes = -(-size // training.num_samples)
            most = max(1, round(part * (window or max(1, POOL_BYTES // max(sample_bytes, LEAST_BYTES)))))
            if len(own) > 1:
                roll = fit_roll(sizes[number], len(own), sample_bytes, most, streams)
        found.append(MemberSpec(name, parts[number], sizes[number], roll))
    return tuple(found)


def most_held(table: Table, rows: SetRows, windows: Windows | None, window: int | None) -> int:
    """Return the largest size in bytes of a set that is kept in memory: 0 if the recipe asks for a smaller `window`."""
    num_samples = len(rows) if windows is None else len(windows)
    if table.blocks is None or window is None or window >= num_samples:
        return HOLD_BYTES
    return HOLD_BYTES if sample_blocks(table, rows, windows) is None else 0


def most_held_beside(training: PreparedSet) -> int:
    """Return the same limit for the other sets of the training set's source: 0 if that is read in blocks.

    Rows from all over the files would otherwise mean reading all files before the first step.
    """
    return 0 if training.table.blocks is not None and training.held is None else HOLD_BYTES


def choose_roll(training: PreparedSet, window: int | None, streams: int | None) -> RollSpec | None:
    """Return how the training set is block-shuffled, by the keys of the recipe; None for a full shuffle.

    A full shuffle costs nothing if all samples are in memory, or if the source reads single rows efficiently.
    """
    size, num_samples = training.size_bytes, training.num_samples
    if training.table.blocks is None or training.is_held or not num_samples or size is None:
        return None
    if size <= HOLD_BYTES if window is None else window >= num_samples:
        return None
    blocks = blocks_of(training)
    return None if blocks is None else fit_roll(num_samples, len(blocks) - 1, -(-size // num_samples), window, streams)


def blocks_of(prepared: PreparedSet) -> np.ndarray | None:
    found = sample_blocks(prepared.table, prepared.rows, prepared.windows)
    return found if found is None or not prepared.table.blocks_may_be_cut else cut(found, MOST_SAMPLES)


def cut(starts: np.ndarray, most: int) -> np.ndarray:
    """Cut blocks (blocks + 1,) of more than `most` samples into equal ones."""
    sizes = np.diff(starts)
    pieces = -(-sizes // most)
    block = np.repeat(np.arange(len(sizes)), pieces)
    inside = np.arange(len(block)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    return np.concatenate([starts[block] + sizes[block] * inside // pieces[block], starts[-1:]])


def _places(starts: np.ndarray, rows: SetRows) -> np.ndarray | None:
    """Return, for each start, the position in the set of its first row from there on."""
    if isinstance(rows, RowRange):
        return np.asarray(np.clip(starts, rows.start, rows.stop) - rows.start)
    if isinstance(rows, RowShare):
        return rows.before(starts)
    if isinstance(rows, RowChain):
        ends = [*rows.firsts[1:], int(starts[-1])]
        inside = [
            _places(np.clip(starts, *each) - each[0], piece)
            for piece, each in zip(rows.pieces, zip(rows.firsts, ends, strict=True), strict=True)
        ]
        return (
            None
            if any(each is None for each in inside)
            else np.sum([each for each in inside if each is not None], axis=0)
        )
    if isinstance(rows, RowList) and bool((np.diff(rows.numbers) > 0).all()):
        found: np.ndarray = np.searchsorted(rows.numbers, starts)
        return found
    return None
