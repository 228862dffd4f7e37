"""(seed, epoch, position) -> sample for a set that is read in blocks: blocks in another order in each epoch, rows mixed
within a window of blocks. Pure as `order.sample_index`, and kind to a disk.

    laid out   the blocks of an epoch one after the other, by a permutation of the blocks
    streams    the layout cut into S equal stretches; S belongs to the data, and no layout changes it
    windows    a stretch cut at the ends of its blocks, W blocks at a time; a permutation of the samples of each
    sequence   position p of the epoch is the next sample of stream p mod S
    batch      a run of the sequence, its samples sorted by stream

So a batch holds samples of all streams, those of one lie side by side in it, and a rank that takes a share of the slots
of each batch reads a share of the streams. The batch size does not change the sequence, only where it is cut.

The first window of a stretch is one block, so that the first batch is there soon; the second is longer in each stream
than in the one before, so that streams come to the end of their windows at different times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from declarative_train.components.counter_rng import key_of
from declarative_train.data.order import permuted, shuffled
from declarative_train.data.spec import RollSpec

STREAMS = 32  # of a recipe that names no number: at most
POOL_BYTES = 512 << 20  # of samples that are mixed with each other, of a recipe that names no number
LEAST_BYTES = 32  # that a sample in a window takes: its number, and where it lies
_LEAST_BLOCKS = 2  # of a window, as long as there may be fewer streams


def chosen(num_samples: int, num_blocks: int, sample_bytes: int, window: int | None, streams: int | None) -> RollSpec:
    """Streams and blocks per window that come nearest to `window` samples in memory (None: `POOL_BYTES` of them)."""
    per_block = max(num_samples / max(num_blocks, 1), 1e-9)
    blocks = (window or max(1, POOL_BYTES // max(sample_bytes, LEAST_BYTES))) / per_block  # in memory at a time
    if streams is None:
        streams = 1
        while streams < STREAMS and 2 * streams * _LEAST_BLOCKS <= blocks:
            streams *= 2
    streams = max(1, min(streams, num_samples))
    return RollSpec(streams, max(1, round(blocks / streams)))


@dataclass(frozen=True, slots=True)
class Piece:
    """`count` samples of one block, from `first` on."""

    first: int
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Samples that are mixed with each other. `start`: its first place in the layout of the epoch. `key`: None where
    they keep their order."""

    epoch: int
    number: int
    stream: int
    start: int
    size: int
    key: int | None

    def order(self) -> np.ndarray:
        """(size,) int64: which of its samples stand at its places, numbered as its pieces have them."""
        return np.arange(self.size) if self.key is None else shuffled(self.key, self.size)

    def inner(self, places: np.ndarray) -> np.ndarray:
        """Places in the layout -> which of the window's samples stand there, numbered as its pieces have them."""
        places = places - self.start
        return places if self.key is None else np.asarray(_mixed(self.key, self.size)[places])


@lru_cache(maxsize=8)
def _mixed(key: int, size: int) -> np.ndarray:
    return shuffled(key, size)


class RolledOrder:
    """`starts` (blocks + 1,): the sample that each block begins with, and the end of the last. `seed` None: blocks and
    samples keep their order."""

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
        """int64 samples at these positions of the epoch, slot by slot of its batches."""
        return self.epoch(epoch).samples(self.places(positions))

    def places(self, positions: np.ndarray) -> np.ndarray:
        """Positions of an epoch -> places in its layout: of any epoch the same."""
        streams, turns = self.turns(positions)
        return np.asarray(self.stretches[streams] + turns)

    def places_of_batches(self, positions: np.ndarray, count: int) -> np.ndarray:
        """The same of slots of a full batch, and of those in the full batches behind it, `count` in all."""
        size, streams = self._batch_size, self.num_streams
        if size % streams:
            return self.places((positions + size * np.arange(count)[:, None]).ravel())
        return np.asarray((self.places(positions) + size // streams * np.arange(count)[:, None]).ravel())

    def runs_of_batch(self, positions: np.ndarray) -> tuple[np.ndarray, int]:
        """Of slots of a full batch that are all that it takes of some streams: the place in the layout of the first of
        each, and how many they are; the full batches behind it go on there. 0: they are others."""
        length, rest = divmod(self._batch_size, self.num_streams)
        if rest or len(positions) % length:
            return np.empty(0, np.int64), 0
        places = self.places(positions).reshape(-1, length)
        return places[:, 0], length if bool((np.diff(places) == 1).all()) else 0

    def turns(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Positions of an epoch, slot by slot of its batches -> their streams, and which sample of the stream."""
        size, count = self._batch_size, self.num_streams
        positions = np.asarray(positions, np.int64)
        slot = positions % size
        begin = positions - slot
        if size % count == 0 and positions.size and int(positions.max()) < self.num_samples // size * size:
            streams = slot // (size // count)  # full batches of equal shares: the same by less
            return streams, begin // count + slot - streams * (size // count)
        return self._turns_of_run(slot, begin, np.minimum(size, self.num_samples - begin))

    def places_of_run(self, slot: np.ndarray, begin: np.ndarray, length: np.ndarray) -> np.ndarray:
        """Places in the layout of the slots of runs of the sequence, sorted by stream: `length` positions from `begin`
        on, one of each for each slot."""
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
        """Of the sequence: no batch before the one that holds it needs that sample of that stream."""
        return np.asarray(turn * self.num_streams + stream)

    def _epoch(self, epoch: int) -> EpochLayout:
        return EpochLayout(self._seed, epoch, self._starts, self.stretches, self.window)


def _stream_of(
    slot: np.ndarray, rounds: np.ndarray, first: np.ndarray, phase: np.ndarray, last: np.ndarray
) -> np.ndarray:
    """The streams in turn: `first` of rounds + 1 slots, to `phase` of rounds, to `last` of rounds + 1, then rounds."""
    more = rounds + 1
    end_first = first * more
    end_phase = end_first + (np.maximum(phase, first) - first) * rounds
    end_last = end_phase + (last - np.maximum(phase, first)) * more
    few = np.maximum(rounds, 1)  # where there are no rounds no slot lies in those stretches
    found = np.where(slot < end_first, slot // more, first + (slot - end_first) // few)
    found = np.where(slot >= end_phase, np.maximum(phase, first) + (slot - end_phase) // more, found)
    found = np.where(slot >= end_last, last + (slot - end_last) // few, found)
    return np.asarray(found)


class EpochLayout:
    """The blocks of one epoch, laid out, with their windows: memory by the number of blocks."""

    def __init__(self, seed: int | None, epoch: int, starts: np.ndarray, stretches: np.ndarray, window: int) -> None:
        self._epoch = epoch
        self._key = None if seed is None else key_of("window", seed, epoch)
        order = np.arange(len(starts) - 1)
        if seed is not None:
            order = permuted(key_of("blocks", seed, epoch), order, len(order))
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
        """The windows that these places of the layout lie in."""
        found: np.ndarray = np.searchsorted(self.cuts, places, side="right") - 1
        return found

    def _at(self, laid: np.ndarray) -> np.ndarray:
        block = np.searchsorted(self._laid, laid, side="right") - 1
        found: np.ndarray = self._blocks[block] + laid - self._laid[block]
        return found

    def window(self, number: int) -> Window:
        stream = int(np.searchsorted(self.windows_of, number, side="right")) - 1
        start, stop = int(self.cuts[number]), int(self.cuts[number + 1])
        key = None if self._key is None else key_of(self._key, number)
        return Window(self._epoch, number, stream, start, stop - start, key)

    def pieces(self, window: Window) -> list[Piece]:
        """What it holds, in the order that `Window.inner` numbers."""
        start, stop = window.start, window.start + window.size
        first = int(np.searchsorted(self._laid, start, side="right")) - 1
        last = int(np.searchsorted(self._laid, stop, side="left"))
        ends = np.clip(self._laid[first : last + 1], start, stop)
        begins = self._blocks[first:last] + ends[:-1] - self._laid[first:last]
        return [Piece(*each) for each in zip(begins.tolist(), np.diff(ends).tolist(), strict=True) if each[1]]


def _pairs(stretches: np.ndarray) -> Sequence[tuple[int, tuple[int, int]]]:
    return [(stream, (int(stretches[stream]), int(stretches[stream + 1]))) for stream in range(len(stretches) - 1)]


def _cut(laid: np.ndarray, start: int, stop: int, window: int, stream: int, num_streams: int) -> np.ndarray:
    """Where the windows of a stretch begin."""
    first = int(np.searchsorted(laid, start, side="right"))
    ends = laid[first : int(np.searchsorted(laid, stop, side="left"))]  # of its blocks but for the last
    second = 1 + stream * window // num_streams
    taken = np.concatenate([[0], np.arange(second, max(len(ends), 1), window)])
    return np.concatenate([[start], ends[taken[taken < len(ends)]]]).astype(np.int64)
