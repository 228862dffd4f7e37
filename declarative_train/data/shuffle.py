"""Block shuffle: (seed, epoch, position) -> sample, for a set that is read in blocks.

Each epoch orders the blocks differently and mixes rows within a window of blocks. The order is a pure function, like
`order.sample_index`, and each file is read in large pieces.

block layout   the samples of an epoch, block after block, with the blocks in random order; a place is an index into it
streams        S equal parts of the block layout; S is part of the plan, and does not depend on the number of ranks
windows        a stream is cut into windows of W blocks; the samples of each window are shuffled
sequence       position p of the epoch is the next sample of stream p mod S
batch          consecutive positions of the sequence, sorted by stream

So a batch has samples of all streams, and the samples of one stream are consecutive in it. A rank computes a fixed part
of each batch, so it reads only some streams. Another batch size cuts the same sequence at other positions. The first
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
POOL_BYTES = 512 << 20  # memory of the samples that are shuffled together, if the recipe sets no number
LEAST_BYTES = 32  # least memory of a sample in a window: its number and its place
_LEAST_BLOCKS = 2  # blocks per window; with fewer blocks in memory, there are fewer streams


def fit_roll(num_samples: int, num_blocks: int, sample_bytes: int, window: int | None, streams: int | None) -> RollSpec:
    """Return the number of streams and the blocks per window of a block shuffle that keeps about `window` samples in
    memory.

    `window`: None means as many samples as fit into `POOL_BYTES`. `streams`: the number that the recipe sets, or None.
    `sample_bytes`: size of one sample.
    """
    per_block = max(num_samples / max(num_blocks, 1), 1e-9)
    blocks = (window or max(1, POOL_BYTES // max(sample_bytes, LEAST_BYTES))) / per_block  # blocks in memory at a time
    if streams is None:
        streams = 1
        while streams < STREAMS and 2 * streams * _LEAST_BLOCKS <= blocks:
            streams *= 2
    streams = max(1, min(streams, num_samples))
    return RollSpec(streams, max(1, round(blocks / streams)))


@dataclass(frozen=True, slots=True)
class BlockPiece:
    """Consecutive samples of one block: `count` samples, of which the first has the index `first` in the set."""

    first: int
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class ShuffleWindow:
    """Window of the block shuffle: `size` samples that are shuffled together. They are consecutive in the block layout
    of one epoch (the docstring of this module defines block layout and stream).

    `start`: index of the window's first sample in the block layout. `number`: index of the window in the epoch.
    `stream`: index of the stream to which the window belongs. `key`: decides the random order of the samples; None:
    they are not shuffled.
    """

    epoch: int
    number: int
    stream: int
    start: int
    size: int
    key: int | None

    def order(self) -> np.ndarray:
        """Return the indices of the window's samples in the order in which they are used, (size,) int64. Index 0 is the
        first sample of the window before the shuffle."""
        return np.arange(self.size) if self.key is None else shuffle_all(self.key, self.size)

    def inner(self, places: np.ndarray) -> np.ndarray:
        """Return the index within the window of each sample that is used at one of `places`. `places`: indices into the
        block layout, all in this window."""
        places = places - self.start
        return places if self.key is None else np.asarray(_window_order(self.key, self.size)[places])


@lru_cache(maxsize=8)
def _window_order(key: int, size: int) -> np.ndarray:
    return shuffle_all(key, size)


class RolledOrder:
    """Order of the samples of a block-shuffled set (explained at the top of this file).

    `starts` (blocks + 1,): the index in the set of the first sample of each block, then the end of the last block.
    `roll`: the number of streams, and the number of blocks in a window. `seed`: None: blocks and samples keep their
    order."""

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

    def sample_indices(self, epoch: int, positions: np.ndarray) -> np.ndarray:
        """Return the index in the set (int64) of the sample at each of `positions` of an epoch."""
        return self.epoch(epoch).sample_indices(self.places(positions))

    def places(self, positions: np.ndarray) -> np.ndarray:
        """Return, for the sample at each of `positions` in an epoch, its index in the block layout (explained at the
        top of this file). The block layout differs between epochs, these indices do not."""
        streams, turns = self.turns(positions)
        return np.asarray(self.stretches[streams] + turns)

    def places_of_batches(self, positions: np.ndarray, count: int) -> np.ndarray:
        """Return the indices into the block layout of certain samples in `count` consecutive full batches. `positions`:
        positions of these samples in the epoch, for the first batch. In the other batches, the samples at the same
        offsets are used."""
        size, streams = self._batch_size, self.num_streams
        if size % streams:
            return self.places((positions + size * np.arange(count)[:, None]).ravel())
        return np.asarray((self.places(positions) + size // streams * np.arange(count)[:, None]).ravel())

    def runs_of_batch(self, positions: np.ndarray) -> tuple[np.ndarray, int]:
        """Divide `positions`, which are in one full batch, into runs. A run is all samples of one stream in the batch;
        they are consecutive in the block layout. Return (starts, length). `starts`: index into the block layout of the
        first sample of each run. `length`: number of samples of every run.

        In the next full batch, the run of the same stream begins where this one ends. `length` is 0 if the streams have
        different numbers of samples in the batch, or if `positions` has only a part of a run.
        """
        length, rest = divmod(self._batch_size, self.num_streams)
        if rest or len(positions) % length:
            return np.empty(0, np.int64), 0
        places = self.places(positions).reshape(-1, length)
        return places[:, 0], length if bool((np.diff(places) == 1).all()) else 0

    def turns(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return two arrays with one entry for each of `positions` of an epoch: the index of the stream that has its
        sample, and the index of this sample within the stream. (The top of this file defines streams.)"""
        size, count = self._batch_size, self.num_streams
        positions = np.asarray(positions, np.int64)
        slot = positions % size
        begin = positions - slot
        if size % count == 0 and positions.size and int(positions.max()) < self.num_samples // size * size:
            # full batches to which all streams give the same number: a shorter computation of the same result
            streams = slot // (size // count)
            return streams, begin // count + slot - streams * (size // count)
        return self._turns_of_run(slot, begin, np.minimum(size, self.num_samples - begin))

    def places_of_run(self, slot: np.ndarray, begin: np.ndarray, length: np.ndarray) -> np.ndarray:
        """Return the index in the block layout of each of N samples. The arguments and the result are arrays (N,).

        `begin`, `length`: a range of positions of the sequence. `slot`: index of the sample in this range after its
        positions are sorted by stream. (The top of this file explains block layout, sequence and stream.)
        """
        streams, turns = self._turns_of_run(slot, begin, length)
        return np.asarray(self.stretches[streams] + turns)

    def _turns_of_run(self, slot: np.ndarray, begin: np.ndarray, length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        count = self.num_streams
        phase, rounds, rest = begin % count, length // count, length % count
        # every stream gives `rounds` samples, and `rest` streams, counted cyclically from `phase` on, give one more
        first = np.maximum(phase + rest - count, 0)  # streams 0 to first - 1 give one more
        last = np.minimum(phase + rest, count)  # streams phase to last - 1 give one more
        streams = _stream_of(slot, rounds, first, phase, last)
        before = streams * rounds + np.minimum(streams, first) + np.clip(streams - phase, 0, last - phase)
        turn = -((streams - begin) // count)  # turn of the stream at its first position from `begin` on
        return streams, turn + slot - before

    def sequence_position(self, stream: np.ndarray, turn: np.ndarray) -> np.ndarray:
        """Return the position in the sequence of the sample with index `turn` in the stream `stream` (see the top of
        this file). Its position in the epoch is another one, because the samples of each batch are sorted by stream."""
        return np.asarray(turn * self.num_streams + stream)

    def _epoch(self, epoch: int) -> EpochLayout:
        return EpochLayout(self._seed, epoch, self._starts, self.stretches, self.window)


def _stream_of(
    slot: np.ndarray, rounds: np.ndarray, first: np.ndarray, phase: np.ndarray, last: np.ndarray
) -> np.ndarray:
    """Return the index of the stream to which each of N samples belongs. The arguments are arrays (N,).

    Each sample is in a list of samples that is sorted by stream. `slot`: index of the sample in its list. The other
    arguments say how many samples of each stream the list has:

    streams 0 to first - 1        rounds + 1
    streams first to phase - 1    rounds
    streams phase to last - 1     rounds + 1
    all later streams             rounds

    If `phase` is not above `first`, the second line has no streams.
    """
    more = rounds + 1
    end_first = first * more
    end_phase = end_first + (np.maximum(phase, first) - first) * rounds
    end_last = end_phase + (last - np.maximum(phase, first)) * more
    few = np.maximum(rounds, 1)  # if `rounds` is 0, those streams have no slots, and the divisor does not matter
    found = np.where(slot < end_first, slot // more, first + (slot - end_first) // few)
    found = np.where(slot >= end_phase, np.maximum(phase, first) + (slot - end_phase) // more, found)
    found = np.where(slot >= end_last, last + (slot - end_last) // few, found)
    return np.asarray(found)


class EpochLayout:
    """Block layout of one epoch: the order of the blocks, and the windows that are cut from it.

    `stretches`: the index in the block layout at which each stream begins, then the end of the last stream. `window`:
    how many blocks a window has. The memory of the object grows with the number of blocks.
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

    def sample_indices(self, places: np.ndarray) -> np.ndarray:
        number = self.number_of(places)
        order = np.argsort(number, kind="stable")
        found = np.empty(len(places), np.int64)
        numbers, begins = np.unique(number[order], return_index=True)
        for each, mine in zip(numbers.tolist(), np.split(order, begins[1:]), strict=False):
            window = self.window(each)
            found[mine] = self._at(window.start + window.inner(places[mine]))
        return found

    def number_of(self, places: np.ndarray) -> np.ndarray:
        """Return, for each of the samples `places` (indices into the block layout), the index in the epoch of its
        window."""
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
        """Return the pieces of blocks that a window consists of, in the order of the block layout.
        `ShuffleWindow.inner` has indices of samples in this order."""
        start, stop = window.start, window.start + window.size
        first = int(np.searchsorted(self._laid, start, side="right")) - 1
        last = int(np.searchsorted(self._laid, stop, side="left"))
        ends = np.clip(self._laid[first : last + 1], start, stop)
        begins = self._blocks[first:last] + ends[:-1] - self._laid[first:last]
        return [BlockPiece(*each) for each in zip(begins.tolist(), np.diff(ends).tolist(), strict=True) if each[1]]


def _pairs(stretches: np.ndarray) -> Sequence[tuple[int, tuple[int, int]]]:
    return [(stream, (int(stretches[stream]), int(stretches[stream + 1]))) for stream in range(len(stretches) - 1)]


def _cut(laid: np.ndarray, start: int, stop: int, window: int, stream: int, num_streams: int) -> np.ndarray:
    """Return the index at which each window of one stream begins. All indices refer to the block layout, the order of
    samples that `data/shuffle.py` explains.

    `laid`: index at which each block begins. `start`, `stop`: indices at which the stream begins and ends. `window`:
    number of blocks in a window. `stream`: index of the stream, of `num_streams`; it decides the size of the stream's
    second window.
    """
    first = int(np.searchsorted(laid, start, side="right"))
    # ends of the blocks of the stream, without the last block
    ends = laid[first : int(np.searchsorted(laid, stop, side="left"))]
    second = 1 + stream * window // num_streams
    taken = np.concatenate([[0], np.arange(second, max(len(ends), 1), window)])
    return np.concatenate([[start], ends[taken[taken < len(ends)]]]).astype(np.int64)


# larger blocks are cut if the table allows it: a few bytes of text can have very many overlapping windows
MOST_SAMPLES = 1 << 17


def sample_blocks(table: Table, rows: SetRows, windows: Windows | None) -> np.ndarray | None:
    """Return (blocks + 1,) int64: the index in the set of the first sample of each block, then the number of all
    samples.

    A sample belongs to the block of its first row. Return None if the table has no blocks, or if the rows are not in
    the order of the files.
    """
    if table.blocks is None:
        return None
    places = _places(np.asarray(table.blocks, np.int64), rows)
    return None if places is None else np.unique(samples_before(places, windows))


def samples_before(places: np.ndarray, windows: Windows | None) -> np.ndarray:
    """Return how many samples begin before each of `places` (indices of rows in a set). `windows`: the windows of the
    set; None: each row is a sample."""
    if windows is None or not len(windows.begins):
        return places if windows is None else np.zeros_like(places)
    run = np.searchsorted(windows.begins, places, side="right") - 1
    inside = -(-(places - windows.begins[run]) // windows.stride)
    counts = windows.counts[run] + np.minimum(inside, windows.counts[run + 1] - windows.counts[run])
    return np.where(run < 0, 0, counts)


def most_held(table: Table, rows: SetRows, windows: Windows | None, window: int | None) -> int:
    """Return the largest size in bytes with which a set is kept in memory. It is 0 if the set can be read in blocks and
    is larger than the shuffle window: then the set is read in blocks. `window`: size of the shuffle window in samples,
    if the recipe sets it."""
    num_samples = len(rows) if windows is None else len(windows)
    if table.blocks is None or window is None or window >= num_samples:
        return HOLD_BYTES
    return HOLD_BYTES if sample_blocks(table, rows, windows) is None else 0


def most_held_of_others(training: PreparedSet) -> int:
    """Return the size in bytes up to which a set other than the training set is kept in memory. It is 0 if the training
    set is read in blocks: the rows of the other set are spread over all files, which would all be read before the first
    step."""
    return 0 if training.table.blocks is not None and training.held is None else HOLD_BYTES


def choose_roll(training: PreparedSet, window: int | None, streams: int | None) -> RollSpec | None:
    """Return the block shuffle of the training set, or None for a full shuffle. `window`, `streams`: keys of the
    recipe. A full shuffle is chosen if all samples are in memory, or if the source reads single rows efficiently."""
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
    """Divide each block with more than `most` samples into smaller blocks of about equal size, and return the starts of
    all blocks. `starts` (blocks + 1,): index of the first sample of each block, then the number of all samples; the
    result has the same form."""
    sizes = np.diff(starts)
    pieces = -(-sizes // most)
    block = np.repeat(np.arange(len(sizes)), pieces)
    inside = np.arange(len(block)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    return np.concatenate([starts[block] + sizes[block] * inside // pieces[block], starts[-1:]])


def _places(starts: np.ndarray, rows: SetRows) -> np.ndarray | None:
    """Return the index within the set of the first row of each block. `starts`: the row of the table at which each
    block begins.

    If that row is not in the set, the index is that of the set's next row. Return None if the rows of the set are not
    in the order of the files.
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
