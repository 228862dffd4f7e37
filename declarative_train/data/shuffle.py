"""Block shuffle: (seed, epoch, position) -> sample, for a set that is read in blocks.

Each epoch orders the blocks differently and mixes rows within a window of blocks. The order is a pure function, like
`order.sample_index`, and each file is read in large pieces.

block layout   the samples of an epoch, block after block, with the blocks in random order; a place is an index into it
streams        S equal parts of the block layout; S is part of the plan, and does not depend on the number of ranks
windows        a stream is cut into windows of W blocks; the samples of each window are shuffled
sequence       position p of the epoch is the next sample of stream p mod S
batch          consecutive positions of the sequence, sorted by stream

So a batch has samples of all streams, and the samples of one stream are consecutive in it. A rank, which has some
slots of each batch, reads only some streams. Another batch size cuts the same sequence at other positions. The first
window of a stream is one block, so that the first batch is ready early. The size of the second window differs from
stream to stream, so that streams reach the end of their windows at different times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from declarative_train.components.counter_rng import key_of
from declarative_train.components.data import Table
from declarative_train.data.order import permute, shuffle_all
from declarative_train.data.prepared_set import HOLD_BYTES, PreparedSet
from declarative_train.data.rows import RowChain, RowList, RowRange, RowShare, SetRows, Windows
from declarative_train.data.spec import RollSpec

STREAMS = 32  # at most, if the recipe sets no number
POOL_BYTES = 512 << 20  # of samples that are shuffled together, if the recipe sets no number
LEAST_BYTES = 32  # least memory of a sample in a window: its number and its place
_LEAST_BLOCKS = 2  # of a window, as long as there may be fewer streams


def fit_roll(num_samples: int, num_blocks: int, sample_bytes: int, window: int | None, streams: int | None) -> RollSpec:
    """Return the block shuffle (its number of streams, and of blocks per window) that keeps about `window` samples in
    memory; if `window` is None, as many as fit into `POOL_BYTES`. `streams`: the number that the recipe sets, or None.
    `sample_bytes`: size of one sample."""
    per_block = max(num_samples / max(num_blocks, 1), 1e-9)
    blocks = (window or max(1, POOL_BYTES // max(sample_bytes, LEAST_BYTES))) / per_block  # in memory at a time
    if streams is None:
        streams = 1
        while streams < STREAMS and 2 * streams * _LEAST_BLOCKS <= blocks:
            streams *= 2
    streams = max(1, min(streams, num_samples))
    return RollSpec(streams, max(1, round(blocks / streams)))


@dataclass(frozen=True, slots=True)
class BlockPiece:
    """Consecutive samples of one block: `count` of them, from sample number `first` on."""

    first: int
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class ShuffleWindow:
    """Samples that are shuffled together: `size` consecutive samples of the block layout of epoch number `epoch`,
    from place `start` on (the block layout is defined at the top of this file). `number`: number of the window
    in the epoch. `stream`: number of the stream that the window belongs to. `key`: key of the random
    permutation of the samples; None: they are not shuffled.
    """

    epoch: int
    number: int
    stream: int
    start: int
    size: int
    key: int | None

    def order(self) -> np.ndarray:
        """Return the permutation of the window, (size,) int64: entry k is the sample that is used at position k of the
        window. Samples are numbered from 0 within the window.
        """
        return np.arange(self.size) if self.key is None else shuffle_all(self.key, self.size)

    def inner(self, places: np.ndarray) -> np.ndarray:
        """Return the sample that is used at each of `places`, numbered from 0 within the window. `places`: indices
        into the block layout, all inside this window.
        """
        places = places - self.start
        return places if self.key is None else np.asarray(_window_order(self.key, self.size)[places])


@lru_cache(maxsize=8)
def _window_order(key: int, size: int) -> np.ndarray:
    return shuffle_all(key, size)


class RolledOrder:
    """Order of a block-shuffled set. `starts` (blocks + 1,): the number of the first sample of each block, then the
    number of all samples. `seed`: None means that blocks and samples keep their order."""

    def __init__(self, seed: int | None, starts: np.ndarray, roll: RollSpec, batch_size: int) -> None:
        self.num_samples = int(starts[-1] - starts[0])
        self.num_streams = max(1, min(roll.streams, self.num_samples))
        self._seed = seed
        self._starts = np.asarray(starts, np.int64)
        self.window = roll.window
        self._batch_size = batch_size
        self.num_blocks = len(starts) - 1
        counts = -(-(self.num_samples - np.arange(self.num_streams)) // self.num_streams)
        self.stretches = np.concatenate([[0], np.cumsum(counts)])
        self.epoch = lru_cache(maxsize=3)(self._epoch)

    def samples(self, epoch: int, positions: np.ndarray) -> np.ndarray:
        """Return the samples at `positions` of an epoch, as numbers in the set (int64)."""
        return self.epoch(epoch).samples(self.places(positions))

    def places(self, positions: np.ndarray) -> np.ndarray:
        """Return the indices into the block layout that belong to `positions` of an epoch. They are the same in every
        epoch.
        """
        streams, turns = self.turns(positions)
        return np.asarray(self.stretches[streams] + turns)

    def places_of_batches(self, positions: np.ndarray, count: int) -> np.ndarray:
        """Return indices into the block layout for the samples of `count` consecutive full batches. `positions`:
        positions of the epoch inside the first batch; from each later batch, the same part is used.
        """
        size, streams = self._batch_size, self.num_streams
        if size % streams:
            return self.places((positions + size * np.arange(count)[:, None]).ravel())
        return np.asarray((self.places(positions) + size // streams * np.arange(count)[:, None]).ravel())

    def runs_of_batch(self, positions: np.ndarray) -> tuple[np.ndarray, int]:
        """Return (index of the first sample of each run, length of all runs) for `positions` of one full batch. A run
        is all samples of one stream in the batch. They have consecutive indices in the block layout, and the next
        full batch continues each run. Return an empty array and length 0 if `positions` contains only part of a
        run.
        """
        length, rest = divmod(self._batch_size, self.num_streams)
        if rest or len(positions) % length:
            return np.empty(0, np.int64), 0
        places = self.places(positions).reshape(-1, length)
        return places[:, 0], length if bool((np.diff(places) == 1).all()) else 0

    def turns(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return, for each of `positions` of an epoch, the number of its stream and the index of its sample within the
        stream.
        """
        size, count = self._batch_size, self.num_streams
        positions = np.asarray(positions, np.int64)
        slot = positions % size
        begin = positions - slot
        if size % count == 0 and positions.size and int(positions.max()) < self.num_samples // size * size:
            streams = slot // (size // count)  # full batches of equal shares: the same by less
            return streams, begin // count + slot - streams * (size // count)
        return self._turns_of_run(slot, begin, np.minimum(size, self.num_samples - begin))

    def places_of_run(self, slot: np.ndarray, begin: np.ndarray, length: np.ndarray) -> np.ndarray:
        """Return an index into the block layout for each entry of the three arrays. An entry describes one sample: it
        is at index `slot` of a run of `length` positions of the sequence that begins at position `begin`, sorted by
        stream.
        """
        streams, turns = self._turns_of_run(slot, begin, length)
        return np.asarray(self.stretches[streams] + turns)

    def _turns_of_run(self, slot: np.ndarray, begin: np.ndarray, length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        count = self.num_streams
        phase, rounds, rest = begin % count, length // count, length % count
        # every stream gives `rounds` samples, and `rest` of them, from `phase` on in a circle, give one more
        first = np.maximum(phase + rest - count, 0)  # so many of the streams 0, 1, ... give one more
        last = np.minimum(phase + rest, count)  # and those from `phase` up to here
        streams = _stream_of(slot, rounds, first, phase, last)
        before = streams * rounds + np.minimum(streams, first) + np.clip(streams - phase, 0, last - phase)
        turn = -((streams - begin) // count)  # of the first position from `begin` on that is the stream's
        return streams, turn + slot - before

    def first_position(self, stream: np.ndarray, turn: np.ndarray) -> np.ndarray:
        """Return the position of the epoch that uses the sample with index `turn` (from 0) of a stream."""
        return np.asarray(turn * self.num_streams + stream)

    def _epoch(self, epoch: int) -> EpochLayout:
        return EpochLayout(self._seed, epoch, self._starts, self.stretches, self.window)


def _stream_of(
    slot: np.ndarray, rounds: np.ndarray, first: np.ndarray, phase: np.ndarray, last: np.ndarray
) -> np.ndarray:
    """Return the stream of each slot of a run of the sequence, which is sorted by stream. Each stream has `rounds` or
    rounds + 1 consecutive slots: streams 0 to first - 1 have rounds + 1; from there to phase - 1, `rounds`; from there
    to last - 1, rounds + 1; all later ones, `rounds`. The five arrays have one entry for each result."""
    more = rounds + 1
    end_first = first * more
    end_phase = end_first + (np.maximum(phase, first) - first) * rounds
    end_last = end_phase + (last - np.maximum(phase, first)) * more
    few = np.maximum(rounds, 1)  # without rounds, those stretches have no slots
    found = np.where(slot < end_first, slot // more, first + (slot - end_first) // few)
    found = np.where(slot >= end_phase, np.maximum(phase, first) + (slot - end_phase) // more, found)
    found = np.where(slot >= end_last, last + (slot - end_last) // few, found)
    return np.asarray(found)


class EpochLayout:
    """Block layout of one epoch: the order of the blocks, and the windows that are cut from it. Its memory grows
    with the number of blocks. `stretches`: the place at which each stream begins, then the end of the last one.
    `window`: blocks per window.
    """

    def __init__(self, seed: int | None, epoch: int, starts: np.ndarray, stretches: np.ndarray, window: int) -> None:
        self._epoch = epoch
        self._key = None if seed is None else key_of("window", seed, epoch)
        order = np.arange(len(starts) - 1)
        if seed is not None:
            order = permute(key_of("blocks", seed, epoch), order, len(order))
        self._blocks = starts[order]
        self._laid = np.concatenate([[0], np.cumsum(np.diff(starts)[order])])
        cuts = [_cut(self._laid, *ends, window, stream, len(stretches) - 1) for stream, ends in _pairs(stretches)]
        self.cuts = np.concatenate([*cuts, stretches[-1:]])
        self.windows_of = np.concatenate([[0], np.cumsum([len(each) for each in cuts])])

    def samples(self, places: np.ndarray) -> np.ndarray:
        number = self.number_of(places)
        order = np.argsort(number, kind="stable")
        found = np.empty(len(places), np.int64)
        numbers, begins = np.unique(number[order], return_index=True)
        for each, mine in zip(numbers.tolist(), np.split(order, begins[1:]), strict=False):
            window = self.window(each)
            found[mine] = self._at(window.start + window.inner(places[mine]))
        return found

    def number_of(self, places: np.ndarray) -> np.ndarray:
        """Return the number of the window that contains each of `places` (indices into the block layout)."""
        found: np.ndarray = np.searchsorted(self.cuts, places, side="right") - 1
        return found

    def _at(self, laid: np.ndarray) -> np.ndarray:
        block = np.searchsorted(self._laid, laid, side="right") - 1
        found: np.ndarray = self._blocks[block] + laid - self._laid[block]
        return found

    def window(self, number: int) -> ShuffleWindow:
        stream = int(np.searchsorted(self.windows_of, number, side="right")) - 1
        start, stop = int(self.cuts[number]), int(self.cuts[number + 1])
        key = None if self._key is None else key_of(self._key, number)
        return ShuffleWindow(self._epoch, number, stream, start, stop - start, key)

    def pieces(self, window: ShuffleWindow) -> list[BlockPiece]:
        """Return the pieces of blocks of which a window consists. `ShuffleWindow.inner` counts the samples of the
        window in the order of these pieces."""
        start, stop = window.start, window.start + window.size
        first = int(np.searchsorted(self._laid, start, side="right")) - 1
        last = int(np.searchsorted(self._laid, stop, side="left"))
        ends = np.clip(self._laid[first : last + 1], start, stop)
        begins = self._blocks[first:last] + ends[:-1] - self._laid[first:last]
        return [BlockPiece(*each) for each in zip(begins.tolist(), np.diff(ends).tolist(), strict=True) if each[1]]


def _pairs(stretches: np.ndarray) -> Sequence[tuple[int, tuple[int, int]]]:
    return [(stream, (int(stretches[stream]), int(stretches[stream + 1]))) for stream in range(len(stretches) - 1)]


def _cut(laid: np.ndarray, start: int, stop: int, window: int, stream: int, num_streams: int) -> np.ndarray:
    """Return the places of the block layout at which the windows of stream number `stream` (of `num_streams`) begin.
    `laid`: the place at which each block begins. `start`, `stop`: places at which the stream begins and ends.
    `window`: blocks per window."""
    first = int(np.searchsorted(laid, start, side="right"))
    ends = laid[first : int(np.searchsorted(laid, stop, side="left"))]  # of its blocks but for the last
    second = 1 + stream * window // num_streams
    taken = np.concatenate([[0], np.arange(second, max(len(ends), 1), window)])
    return np.concatenate([[start], ends[taken[taken < len(ends)]]]).astype(np.int64)


MOST_SAMPLES = 1 << 17  # of a block that may be cut: windows of a text that overlap are many in a few bytes


def sample_blocks(table: Table, rows: SetRows, windows: Windows | None) -> np.ndarray | None:
    """Return (blocks + 1,) int64: number of the first sample of each block (a sample belongs to the block of its first
    row), then the number of all samples. None if the table has no blocks, or the rows are in another order than in the
    files."""
    if table.blocks is None:
        return None
    places = _places(np.asarray(table.blocks, np.int64), rows)
    return None if places is None else np.unique(samples_before(places, windows))


def samples_before(places: np.ndarray, windows: Windows | None) -> np.ndarray:
    """Return how many samples begin before each of `places` (indices of rows in a set). `windows`: how samples are
    cut from the rows; None: each row is a sample.
    """
    if windows is None or not len(windows.begins):
        return places if windows is None else np.zeros_like(places)
    run = np.searchsorted(windows.begins, places, side="right") - 1
    inside = -(-(places - windows.begins[run]) // windows.stride)
    counts = windows.counts[run] + np.minimum(inside, windows.counts[run + 1] - windows.counts[run])
    return np.where(run < 0, 0, counts)


def most_held(table: Table, rows: SetRows, windows: Windows | None, window: int | None) -> int:
    """Return the maximum size in bytes at which a set is kept in memory. It is 0 (never in memory) if the recipe sets
    a shuffle window (`window`, in samples) smaller than the set, and the set can be read in blocks."""
    num_samples = len(rows) if windows is None else len(windows)
    if table.blocks is None or window is None or window >= num_samples:
        return HOLD_BYTES
    return HOLD_BYTES if sample_blocks(table, rows, windows) is None else 0


def most_held_of_others(training: PreparedSet) -> int:
    """Return the maximum size in bytes at which the other sets of the training set's source are kept in memory. It is
    0 (never in memory) if that source is read in blocks: the rows of these sets are spread over all files, so that all
    files would be read before the first step."""
    return 0 if training.table.blocks is not None and training.held is None else HOLD_BYTES


def choose_roll(training: PreparedSet, window: int | None, streams: int | None) -> RollSpec | None:
    """Return the block shuffle of the training set, given the recipe's keys `window` and `streams`. None for a full
    shuffle: all samples are in memory, or the source reads single rows efficiently."""
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
    """Return the starts of blocks (blocks + 1,), after cutting each block with more than `most` samples into equal
    parts."""
    sizes = np.diff(starts)
    pieces = -(-sizes // most)
    block = np.repeat(np.arange(len(sizes)), pieces)
    inside = np.arange(len(block)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    return np.concatenate([starts[block] + sizes[block] * inside // pieces[block], starts[-1:]])


def _places(starts: np.ndarray, rows: SetRows) -> np.ndarray | None:
    """Return, for each of `starts` (the table's row at which a block begins), the index within the set of the
    first row of the set that is at or after it. None if the set's rows are not in the order of the files.
    """
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
