"""Block shuffle: the order of the samples of a set that is read in blocks, such as row groups of Parquet files.

In each epoch, the blocks are put in random order. This makes a list of all samples; an *offset* is an index into it.
The list is divided into S *streams*, equal segments. Each stream is divided into *windows* of W blocks, and the samples
of each window are shuffled inside of it. Then the streams give their samples in turn (*round robin*). A batch has the
next samples of the round robin, sorted by stream. An example with S = 2 and W = 1:

blocks         0 1 2 | 3 4 5 | 6 7 8 | 9 10 11      indices of samples in the set
random order   6 7 8 | 0 1 2 | 9 10 11 | 3 4 5      stream 0 has the offsets 0 to 5, stream 1 the offsets 6 to 11
windows        7 6 8 | 2 0 1 | 9 11 10 | 3 5 4      the sample at offset 0 is now 7
batches of 4   7 6 9 11,  8 2 10 3,  0 1 5 4        with the offsets 0 1 6 7, then 2 3 8 9, then 4 5 10 11
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise

import numpy as np

from declarative_train.components.counter_rng import key_of
from declarative_train.components.data import Table
from declarative_train.data.order import permute, shuffle_all
from declarative_train.data.prepared_set import HOLD_BYTES, PreparedSet
from declarative_train.data.rows import RowChain, RowList, RowRange, RowShare, RowWindows, SetRows
from declarative_train.data.spec import BlockShuffleSpec

STREAMS = 32  # at most, if the recipe sets no number
POOL_BYTES = 512 << 20  # memory of the samples that are shuffled together, if the recipe sets no number
_LEAST_BYTES = 32  # least memory of a sample in a window: its index in the set and the index of its row
_LEAST_BLOCKS = 2  # blocks per window; with fewer blocks in memory, there are fewer streams
# larger blocks are divided if the table allows it: a few bytes of text can have very many overlapping windows
MAX_BLOCK_SAMPLES = 1 << 17
_window_order = lru_cache(maxsize=8)(shuffle_all)


def default_window(sample_bytes: int) -> int:
    """Return the number of samples of `sample_bytes` each that are shuffled together if the recipe sets no number."""
    return max(1, POOL_BYTES // max(sample_bytes, _LEAST_BYTES))


def fit_block_shuffle(
    num_samples: int, num_blocks: int, sample_bytes: int, window: int | None, streams: int | None
) -> BlockShuffleSpec:
    """Return the number of streams and of blocks per window with which about `window` samples are in memory.

    `window`: None means as many samples as fit into `POOL_BYTES`. `streams`: the number that the recipe sets, or None.
    """
    per_block = max(num_samples / max(num_blocks, 1), 1e-9)
    blocks = (window or default_window(sample_bytes)) / per_block  # blocks in memory at a time
    if streams is None:
        streams = 1
        while streams < STREAMS and 2 * streams * _LEAST_BLOCKS <= blocks:
            streams *= 2
    streams = max(1, min(streams, num_samples))
    return BlockShuffleSpec(streams, max(1, round(blocks / streams)))


@dataclass(frozen=True, slots=True)
class BlockRange:
    """Consecutive samples of one block: `count` samples, of which the first has the index `first` in the set."""

    first: int
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class ShuffleWindow:
    """Window of a block shuffle: the samples of a few blocks, which are shuffled together. They have the offsets
    `start` to `start + size - 1` in the list of the samples of the epoch, which has one block after the other.

    `number`: index of the window in the epoch. `stream`: index of the stream to which it belongs. `key`: seed of the
    shuffle; None: the samples keep their order.
    """

    epoch: int
    number: int
    stream: int
    start: int
    size: int
    key: int | None

    def order(self) -> np.ndarray:
        """Return the random order of the window, (size,) int64: for each sample in the order of use, its index in the
        window before the shuffle."""
        return np.arange(self.size) if self.key is None else shuffle_all(self.key, self.size)

    def index_of(self, offsets: np.ndarray) -> np.ndarray:
        """Return, for the sample that is at each of `offsets` after the shuffle, its index in the window before the
        shuffle. `offsets`: indices into the list of the samples of the epoch, all of this window."""
        inside = offsets - self.start
        return inside if self.key is None else np.asarray(_window_order(self.key, self.size)[inside])


class BlockShuffle:
    """Order of the samples of a block-shuffled set, a pure function (seed, epoch, position) -> sample.

    A data-parallel rank computes the same part of each batch. Because a batch is sorted by stream, the rank reads only
    some streams, and the samples of a stream follow each other. A batch of another size has other samples of the same
    round robin.

    `starts` (blocks + 1,): index in the set of the first sample of each block, then the end of the last block. `seed`:
    None: blocks and samples keep their order. `batch_size`: samples in a global batch. `stream_starts` (streams + 1,):
    offset at which each stream begins, then the number of samples. `epoch_blocks(epoch)` returns the order of the
    blocks in an epoch.
    """

    def __init__(self, seed: int | None, starts: np.ndarray, spec: BlockShuffleSpec, batch_size: int) -> None:
        self.num_samples = int(starts[-1] - starts[0])
        self.num_streams = max(1, min(spec.streams, self.num_samples))
        self.num_blocks = len(starts) - 1
        self.window_blocks = spec.window
        self._batch_size = batch_size
        counts = -(-(self.num_samples - np.arange(self.num_streams)) // self.num_streams)
        self.stream_starts = np.concatenate([[0], np.cumsum(counts)])
        starts = np.asarray(starts, np.int64)
        self.epoch_blocks = lru_cache(maxsize=3)(partial(EpochBlocks, seed, starts, self.stream_starts, spec.window))

    def sample_indices(self, epoch: int, positions: np.ndarray) -> np.ndarray:
        """Return the index in the set (int64) of the sample at each of `positions` of an epoch."""
        return self.epoch_blocks(epoch).sample_indices(self.offsets(positions))

    def offsets(self, positions: np.ndarray) -> np.ndarray:
        """Return, for each of `positions` of an epoch, the offset of its sample, int64: the index of the sample in the
        list of streams, after the samples of each window are shuffled. It is the same in every epoch."""
        streams, indices = self.streams(positions)
        return np.asarray(self.stream_starts[streams] + indices)

    def offsets_of_batches(self, positions: np.ndarray, count: int) -> np.ndarray:
        """Return the offsets of certain samples of `count` consecutive full batches, batch after batch. `positions`:
        positions of these samples in the epoch, for the first batch. In the other batches, the samples with the same
        indices in the batch are used."""
        size, streams = self._batch_size, self.num_streams
        if size % streams:
            return self.offsets((positions + size * np.arange(count)[:, None]).ravel())
        return np.asarray((self.offsets(positions) + size // streams * np.arange(count)[:, None]).ravel())

    def segments_of_batch(self, positions: np.ndarray) -> tuple[np.ndarray, int]:
        """Divide `positions` of one full batch into segments: one segment has all samples of a stream in the batch.
        Return (starts, length): the offset of the first sample of each segment, and the number of samples of each.

        The offsets in a segment are consecutive. The next full batch continues them. `length` is 0 if the streams have
        different numbers of samples in the batch, or if `positions` has only a part of a segment.
        """
        length, rest = divmod(self._batch_size, self.num_streams)
        if rest or len(positions) % length:
            return np.empty(0, np.int64), 0
        offsets = self.offsets(positions).reshape(-1, length)
        return offsets[:, 0], length if bool((np.diff(offsets) == 1).all()) else 0

    def streams(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return two arrays with one entry for each of `positions` of an epoch: the index of the stream to which the
        sample belongs, and the index of the sample in this stream."""
        size, count = self._batch_size, self.num_streams
        positions = np.asarray(positions, np.int64)
        index = positions % size
        begin = positions - index
        if size % count == 0 and positions.size and int(positions.max()) < self.num_samples // size * size:
            # full batches to which all streams give the same number: a shorter computation of the same result
            streams = index // (size // count)
            return streams, begin // count + index - streams * (size // count)
        return self._streams_of_range(index, begin, np.minimum(size, self.num_samples - begin))

    def offsets_of_range(self, index: np.ndarray, begin: np.ndarray, length: np.ndarray) -> np.ndarray:
        """Return the offset of each of N samples (`offsets` explains it). The arguments and the result are arrays (N,).

        `begin`, `length`: first position and number of positions of a range of the round robin, such as a batch.
        `index`: index of the sample in this range, after the range is sorted by stream.
        """
        streams, indices = self._streams_of_range(index, begin, length)
        return np.asarray(self.stream_starts[streams] + indices)

    def _streams_of_range(
        self, index: np.ndarray, begin: np.ndarray, length: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return (stream, index in the stream) of N samples; `offsets_of_range` explains the arguments."""
        count = self.num_streams
        phase, rounds, rest = begin % count, length // count, length % count
        # every stream gives `rounds` samples, and `rest` streams, counted cyclically from `phase` on, give one more
        first = np.maximum(phase + rest - count, 0)  # streams 0 to first - 1 give one more
        last = np.minimum(phase + rest, count)  # streams phase to last - 1 give one more
        streams = _find_stream(index, rounds, first, phase, last)
        before = streams * rounds + np.minimum(streams, first) + np.clip(streams - phase, 0, last - phase)
        start = -((streams - begin) // count)  # index in the stream of its first sample from `begin` on
        return streams, start + index - before

    def round_robin_position(self, streams: np.ndarray, indices: np.ndarray) -> np.ndarray:
        """Return the positions in the round robin of the samples with the `indices` in their `streams`. (The positions
        in the epoch are others, because the samples of each batch are sorted by stream.)"""
        return np.asarray(indices * self.num_streams + streams)


def _find_stream(
    index: np.ndarray, rounds: np.ndarray, first: np.ndarray, phase: np.ndarray, last: np.ndarray
) -> np.ndarray:
    """Return the index of the stream to which each of N samples belongs. The arguments are arrays (N,).

    Each sample is in a list of samples that is sorted by stream. `index`: index of the sample in its list. The other
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
    few = np.maximum(rounds, 1)  # if `rounds` is 0, those streams have no samples, and the divisor does not matter
    found = np.where(index < end_first, index // more, first + (index - end_first) // few)
    found = np.where(index >= end_phase, np.maximum(phase, first) + (index - end_phase) // more, found)
    found = np.where(index >= end_last, last + (index - end_last) // few, found)
    return np.asarray(found)


class EpochBlocks:
    """Random order of the blocks in one epoch, and the windows into which it is divided. An *offset* is an index into
    the list of the samples of all blocks in this order. The memory of the object grows with the number of blocks.

    `starts`, `stream_starts`: as in `BlockShuffle`. `window_blocks`: number of blocks in a window. `window_starts`
    (windows + 1,): offset at which each window begins, then the number of samples. `stream_windows` (streams + 1,):
    index of the first window of each stream, then the number of windows.
    """

    def __init__(
        self, seed: int | None, starts: np.ndarray, stream_starts: np.ndarray, window_blocks: int, epoch: int
    ) -> None:
        self._epoch = epoch
        self._key = None if seed is None else key_of("window", seed, epoch)
        order = np.arange(len(starts) - 1)
        if seed is not None:
            order = permute(key_of("blocks", seed, epoch), order, len(order))
        self._firsts = starts[order]  # index in the set of the first sample of each block
        self._offsets = np.concatenate([[0], np.cumsum(np.diff(starts)[order])])  # of these samples
        ends = list(pairwise(stream_starts.tolist()))
        cuts = [
            _window_starts(self._offsets, *each, window_blocks, stream, len(ends)) for stream, each in enumerate(ends)
        ]
        self.window_starts = np.concatenate([*cuts, stream_starts[-1:]])
        self.stream_windows = np.concatenate([[0], np.cumsum([len(each) for each in cuts])])

    def sample_indices(self, offsets: np.ndarray) -> np.ndarray:
        """Return the index in the set (int64) of the sample that is at each of `offsets` after the shuffle."""
        number = self.window_numbers(offsets)
        order = np.argsort(number, kind="stable")
        before = np.empty(len(offsets), np.int64)  # offsets before the windows are shuffled
        numbers, begins = np.unique(number[order], return_index=True)
        for each, mine in zip(numbers.tolist(), np.split(order, begins[1:]), strict=False):
            window = self.window(each)
            before[mine] = window.start + window.index_of(offsets[mine])
        block = np.searchsorted(self._offsets, before, side="right") - 1
        return np.asarray(self._firsts[block] + before - self._offsets[block])

    def window_numbers(self, offsets: np.ndarray) -> np.ndarray:
        """Return the index in the epoch of the window that contains each of `offsets`."""
        return np.asarray(np.searchsorted(self.window_starts, offsets, side="right") - 1)

    def window(self, number: int) -> ShuffleWindow:
        """Return the window with the index `number` in the epoch."""
        stream = int(np.searchsorted(self.stream_windows, number, side="right")) - 1
        start, stop = int(self.window_starts[number]), int(self.window_starts[number + 1])
        key = None if self._key is None else key_of(self._key, number)
        return ShuffleWindow(self._epoch, number, stream, start, stop - start, key)

    def block_ranges(self, window: ShuffleWindow) -> list[BlockRange]:
        """Return the samples of a window before its shuffle, in order, as one range of indices in the set for each
        block."""
        start, stop = window.start, window.start + window.size
        first = int(np.searchsorted(self._offsets, start, side="right")) - 1
        last = int(np.searchsorted(self._offsets, stop, side="left"))
        ends = np.clip(self._offsets[first : last + 1], start, stop)
        begins = self._firsts[first:last] + ends[:-1] - self._offsets[first:last]
        return [BlockRange(*each) for each in zip(begins.tolist(), np.diff(ends).tolist(), strict=True) if each[1]]


def _window_starts(
    block_offsets: np.ndarray, start: int, stop: int, window_blocks: int, stream: int, num_streams: int
) -> np.ndarray:
    """Return the offset at which each window of one stream begins.

    The first window has one block, so that the first batch is ready early. The second has another number of blocks in
    each stream, so that the streams do not all need a new window at the same time. Others have `window_blocks` blocks.

    `block_offsets`: offset at which each block begins. `start`, `stop`: offsets at which the stream begins and ends.
    `stream`: index of the stream, of `num_streams`.
    """
    first = int(np.searchsorted(block_offsets, start, side="right"))
    # ends of the blocks of the stream, without the last block
    ends = block_offsets[first : int(np.searchsorted(block_offsets, stop, side="left"))]
    second = 1 + stream * window_blocks // num_streams
    taken = np.concatenate([[0], np.arange(second, max(len(ends), 1), window_blocks)])
    return np.concatenate([[start], ends[taken[taken < len(ends)]]]).astype(np.int64)


def choose_block_shuffle(training: PreparedSet, window: int | None, streams: int | None) -> BlockShuffleSpec | None:
    """Return the block shuffle of the training set, or None for a full shuffle. `window`, `streams`: keys of the
    recipe. A full shuffle is chosen if all samples are in memory, or if the source reads single rows efficiently."""
    size, num_samples = training.size_bytes, training.num_samples
    if training.table.blocks is None or training.is_held or not num_samples or size is None:
        return None
    if size <= HOLD_BYTES if window is None else window >= num_samples:
        return None
    starts = block_starts(training)
    if starts is None:
        return None
    return fit_block_shuffle(num_samples, len(starts) - 1, -(-size // num_samples), window, streams)


def max_held_bytes(table: Table, rows: SetRows, windows: RowWindows | None, window: int | None) -> int:
    """Return the largest size in bytes with which a set is kept in memory. It is 0 if the set can be read in blocks and
    is larger than the shuffle window: then the set is read in blocks. `window`: size of the shuffle window in samples,
    if the recipe sets it."""
    num_samples = len(rows) if windows is None else len(windows)
    if table.blocks is None or window is None or window >= num_samples:
        return HOLD_BYTES
    return HOLD_BYTES if find_blocks(table, rows, windows) is None else 0


def max_held_bytes_of_others(training: PreparedSet) -> int:
    """Return the size in bytes up to which a set other than the training set is kept in memory. It is 0 if the training
    set is read in blocks: the rows of the other set are spread over all files, which would all be read before the first
    step."""
    return 0 if training.table.blocks is not None and training.held is None else HOLD_BYTES


def block_starts(prepared: PreparedSet) -> np.ndarray | None:
    """Return the blocks of a set, in the form of `find_blocks`. Blocks with more than `MAX_BLOCK_SAMPLES` samples are
    divided if the table allows it."""
    found = find_blocks(prepared.table, prepared.rows, prepared.windows)
    return found if found is None or not prepared.table.blocks_may_be_cut else divide_blocks(found, MAX_BLOCK_SAMPLES)


def find_blocks(table: Table, rows: SetRows, windows: RowWindows | None) -> np.ndarray | None:
    """Return (blocks + 1,) int64: the index in the set of the first sample of each block, then the number of all
    samples.

    A sample belongs to the block of its first row. Return None if the table has no blocks, or if the rows are not in
    the order of the files.
    """
    if table.blocks is None:
        return None
    first_rows = _first_rows(np.asarray(table.blocks, np.int64), rows)
    return None if first_rows is None else np.unique(samples_before(first_rows, windows))


def samples_before(rows: np.ndarray, windows: RowWindows | None) -> np.ndarray:
    """Return how many samples begin before each of `rows` (indices of rows in a set). `windows`: the windows of the
    set; None: each row is a sample."""
    if windows is None or not len(windows.begins):
        return rows if windows is None else np.zeros_like(rows)
    segment = np.searchsorted(windows.begins, rows, side="right") - 1
    inside = -(-(rows - windows.begins[segment]) // windows.stride)
    counts = windows.counts[segment] + np.minimum(inside, windows.counts[segment + 1] - windows.counts[segment])
    return np.where(segment < 0, 0, counts)


def divide_blocks(starts: np.ndarray, most: int) -> np.ndarray:
    """Divide each block with more than `most` samples into smaller blocks of about equal size, and return the starts of
    all blocks. `starts` (blocks + 1,): index of the first sample of each block, then the number of all samples; the
    result has the same form."""
    sizes = np.diff(starts)
    parts = -(-sizes // most)
    block = np.repeat(np.arange(len(sizes)), parts)
    number = np.arange(len(block)) - np.repeat(np.cumsum(parts) - parts, parts)  # index of the part in its block
    return np.concatenate([starts[block] + sizes[block] * number // parts[block], starts[-1:]])


def _first_rows(starts: np.ndarray, rows: SetRows) -> np.ndarray | None:
    """Return the index in the set of the first row of each block. `starts`: the row of the table at which each block
    begins.

    If that row is not in the set, the index is that of the set's next row. Return None if the rows of the set are not
    in the order of the files.
    """
    if isinstance(rows, RowRange):
        return np.asarray(np.clip(starts, rows.start, rows.stop) - rows.start)
    if isinstance(rows, RowShare):
        return rows.before(starts)
    if isinstance(rows, RowChain):
        ends = pairwise([*rows.firsts, int(starts[-1])])
        inside = [
            _first_rows(np.clip(starts, *each) - each[0], part) for part, each in zip(rows.pieces, ends, strict=True)
        ]
        known = [each for each in inside if each is not None]
        return np.sum(known, axis=0) if len(known) == len(inside) else None
    if isinstance(rows, RowList) and bool((np.diff(rows.numbers) > 0).all()):
        return np.asarray(np.searchsorted(rows.numbers, starts))
    return None
