"""Mixture of sources: (seed, epoch, position) -> source, and sample of that source.

share      integer weight of a source
schedule   function from a position to its source, and to the number of earlier positions with the same source. It is a
           binary tree, in which the smallest shares are joined first (Huffman, 1952). Of every `parts` positions that
           reach an inner node, `left` take the left branch. They are spread evenly: of the first t positions,
           (t * left + parts / 2) // parts take it (Bresenham, 1965). So the number of earlier positions of a source
           differs from its share by less than 2. After as many positions as the sum of all shares, it is exact
pass       n consecutive turns of a source, in which it gives each of its n samples once. Pass p begins with turn p * n,
           which may be within an epoch of the mixture. With shuffle, each pass has another order

There is no generator state, so position 10^12 costs as much as 0. The order does not depend on the ranks or the batch
size. An epoch has as many positions as the sources have samples.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm
from typing import cast

import numpy as np

from declarative_train.components.counter_rng import key_of
from declarative_train.data.order import permute
from declarative_train.data.prepared_set import HOLD_BYTES, PreparedSet
from declarative_train.data.rows import SetRows
from declarative_train.data.shuffle import (
    LEAST_BYTES,
    POOL_BYTES,
    BlockShuffle,
    block_starts,
    fit_block_shuffle,
    samples_before,
)
from declarative_train.data.spec import DataError, DataSpec, MemberSpec
from declarative_train.files.open_files import format_path

_MOST_PARTS = 1 << 31  # largest sum of the shares; the product of two such numbers fits into 64 bits
MIXTURE = ("source", "share", "samples", "times an epoch", "read from")


def shares(weights: Sequence[float | None], sizes: Sequence[int]) -> list[int]:
    """Return the shares of the sources of a mixture as integers without a common divisor. They are proportional to
    `weights`. If a weight is None, they are proportional to `sizes` (numbers of samples), so that an epoch has each
    sample once."""
    if None in weights:
        found = list(sizes)
    else:
        exact = [Fraction(str(weight)) for weight in weights]
        whole = lcm(*(each.denominator for each in exact))
        found = [int(each * whole) for each in exact]
        if sum(found) > _MOST_PARTS:
            found = [max(1, round(each * _MOST_PARTS / sum(found))) for each in found]
    common = gcd(*found) or 1
    return [each // common for each in found]


@dataclass(frozen=True, slots=True)
class _Choice:
    """Inner node of the binary tree of a Schedule. It divides positions of the mixture between two `ways`: of every
    `parts` positions that reach it, `left` go the first way, the others the second. A way is the index of a source, or
    another choice."""

    parts: int
    left: int
    ways: tuple[_Choice | int, _Choice | int]

    def count_left(self, turns: np.ndarray) -> np.ndarray:
        """Return, for each number n in `turns`, how many of the first n positions at this node of the tree go the first
        of its two ways."""
        if self.parts > _MOST_PARTS:  # Python's integers are exact, but slow
            exact = (turns.astype(object) * self.left + self.parts // 2) // self.parts
            return np.asarray(exact, np.int64)
        rounds, rest = np.divmod(turns, self.parts)
        found: np.ndarray = rounds * self.left + (rest * self.left + self.parts // 2) // self.parts
        return found


class Schedule:
    """Schedule of a mixture: it decides which source gives the sample at each position. `parts`: the integer share of
    each source."""

    def __init__(self, parts: Sequence[int]) -> None:
        heap: list[tuple[int, int, _Choice | int]] = [(each, number, number) for number, each in enumerate(parts)]
        heapq.heapify(heap)
        while len(heap) > 1:
            light, at, first = heapq.heappop(heap)
            heavy, _, second = heapq.heappop(heap)
            heapq.heappush(heap, (light + heavy, at, _Choice(light + heavy, light, (first, second))))
        self._root = heap[0][2]
        self._ways = dict(_ways(self._root, ()))

    def turns(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (source, turn) for each position, as int64 arrays. `source`: index of the source that gives the
        sample. `turn`: how many earlier positions have the same source."""
        positions = np.asarray(positions, np.int64)
        source, turn = np.empty(len(positions), np.int64), np.empty(len(positions), np.int64)
        waiting = [(self._root, positions, np.arange(len(positions)))]
        while waiting:
            at, turns, where = waiting.pop()
            if isinstance(at, int):
                source[where], turn[where] = at, turns
                continue
            left = at.count_left(turns)
            goes = at.count_left(turns + 1) > left
            waiting.append((at.ways[0], left[goes], where[goes]))
            waiting.append((at.ways[1], (turns - left)[~goes], where[~goes]))
        return source, turn

    def before(self, source: int, positions: np.ndarray) -> np.ndarray:
        """Return, for each of `positions`, how many earlier positions get their sample from `source`."""
        turns = np.asarray(positions, np.int64)
        for choice, is_left in self._ways[source]:
            left = choice.count_left(turns)
            turns = left if is_left else turns - left
        return turns


def _ways(
    at: _Choice | int, way: tuple[tuple[_Choice, bool], ...]
) -> Iterator[tuple[int, tuple[tuple[_Choice, bool], ...]]]:
    if isinstance(at, int):
        yield at, way
        return
    yield from _ways(at.ways[0], (*way, (at, True)))
    yield from _ways(at.ways[1], (*way, (at, False)))


@dataclass(frozen=True, slots=True, eq=False)
class MixturePositions:
    """Samples at N positions of a mixture, as three arrays (N,). `sources`: index of the source. `passes`: index of the
    pass over this source. `places`: index of the sample in the order of this pass; in a block-shuffled source, in the
    block layout of the pass (data/shuffle.py)."""

    sources: np.ndarray
    passes: np.ndarray
    places: np.ndarray

    def pieces(self) -> Iterator[tuple[int, int, np.ndarray]]:
        """Group the N positions by source and by pass over the source. Yield (source, pass, indices of the group's
        positions among the N), sorted by source and pass."""
        for source in np.unique(self.sources).tolist():
            mine = np.flatnonzero(self.sources == source)
            for number in np.unique(self.passes[mine]).tolist():
                yield source, number, mine[self.passes[mine] == number]


class MixedOrder:
    """Order of the samples of a mixture. A schedule chooses a source for each position of an epoch; the position gets
    the next sample of this source. After its last sample, a source begins again.

    `starts` (sources + 1,): index in the set of the first sample of each source, then the number of all samples.
    `blocks`: index in the set of the first sample of each block; None if no source is block-shuffled.
    """

    def __init__(
        self,
        seed: int,
        members: Sequence[MemberSpec],
        starts: np.ndarray,
        blocks: np.ndarray | None,
        batch_size: int,
        *,
        shuffle: bool = True,
    ) -> None:
        self.num_samples = int(starts[-1])
        self.members = tuple(members)
        self._starts = np.asarray(starts, np.int64)
        self._sizes = np.diff(self._starts)
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._keys = [key_of("mixture", seed, member.name) for member in members]
        self.schedule = Schedule([member.share for member in members])
        self.rolled: dict[int, BlockShuffle] = {}
        for number, member in enumerate(members):
            if member.roll is not None and shuffle:
                assert blocks is not None
                inside = blocks[(blocks > starts[number]) & (blocks < starts[number + 1])]
                own = np.concatenate([starts[number : number + 1], inside, starts[number + 1 : number + 2]])
                self.rolled[number] = BlockShuffle(self._keys[number], own, member.roll, batch_size)

    def at(self, epoch: int, positions: np.ndarray) -> MixturePositions:
        positions = np.asarray(positions, np.int64)
        sources, turns = self.schedule.turns(positions + epoch * self.num_samples)
        sizes = self._sizes[sources]
        passes, places = np.divmod(turns, sizes)
        for number, order in self.rolled.items():
            mine = np.flatnonzero(sources == number)
            if len(mine):
                begin = epoch * self.num_samples + positions[mine] // self._batch_size * self._batch_size
                end = np.minimum(begin + self._batch_size, (epoch + 1) * self.num_samples)
                skipped, size = passes[mine] * sizes[mine], sizes[mine]
                first = np.maximum(self.schedule.before(number, begin) - skipped, 0)
                last = np.minimum(self.schedule.before(number, end) - skipped, size)
                places[mine] = order.offsets_of_range(places[mine] - first, first, last - first)
        return MixturePositions(sources, passes, places)

    def sample_indices(self, placed: MixturePositions) -> np.ndarray:
        """Return, as int64, the index of each sample of `placed` in the training set, which contains the samples of all
        sources."""
        found = np.empty(len(placed.sources), np.int64)
        for source, number, mine in placed.pieces():
            found[mine] = self.of_source(source, number, placed.places[mine])
        return found

    def of_source(self, source: int, number: int, places: np.ndarray) -> np.ndarray:
        """Return the indices in the set of samples of one source, (N,). `source`: index of the source. `number`: index
        of a pass over the source. `places`: positions in the order of this pass."""
        if source in self.rolled:
            return self.rolled[source].epoch_blocks(number).sample_indices(places)
        start, size = int(self._starts[source]), int(self._sizes[source])
        if not self._shuffle:
            return start + places
        return start + permute(key_of("order", self._keys[source], number), places, size)

    def numbers(self, samples: np.ndarray, placed: MixturePositions) -> np.ndarray:
        """Return, for each of `samples`, the number that seeds its random transforms: index + pass * (size of the set).
        So a sample is transformed differently in each pass over its source. `samples`: indices in the set. `placed`:
        positions of the mixture; `placed.passes` has the pass of each sample."""
        found: np.ndarray = samples + placed.passes * self.num_samples
        return found


@dataclass(frozen=True, slots=True)
class MixturePart:
    """Source of a mixture, for display. `part`: its share of the positions of an epoch, from 0 to 1. `times`: how often
    an epoch uses each of its samples."""

    name: str
    num_samples: int
    part: float
    times: float


def measure_parts(members: Sequence[MemberSpec]) -> list[MixturePart]:
    whole, total = sum(member.share for member in members), sum(member.num_samples for member in members)
    parts = [member.share / max(whole, 1) for member in members]
    return [
        MixturePart(member.name, member.num_samples, part, part * total / max(member.num_samples, 1))
        for member, part in zip(members, parts, strict=True)
    ]


def list_mixture(data: DataSpec) -> list[tuple[str, ...]]:
    """Return the rows of a table for display, with one row for each source of the mixture. The columns are name, share,
    number of samples, uses of a sample per epoch, and type with path."""
    members = cast("Mapping[str, Mapping[str, Mapping[str, object]]]", data.source["of"])
    rows: list[tuple[str, ...]] = []
    for each in measure_parts(data.mix):
        source = members[each.name]["source"]
        path = source.get("path")
        first = path[0] if isinstance(path, list) else path
        where = str(source["type"]) if first is None else f"{source['type']} {format_path(str(first))}"
        rows.append((each.name, f"{each.part:.2%}", f"{each.num_samples:,}", f"{each.times:,.2f}", where))
    return rows


def sources_in(prepared: PreparedSet) -> np.ndarray:
    """Return (sources + 1,) int64: the index in the set of each source's first sample, then the number of all samples.
    (The samples of a source are consecutive in the set, whatever the order of its rows.)"""
    rows = prepared.rows
    places = [bisect_left(range(len(rows)), first, key=_row_of(rows)) for _, first in prepared.table.members]
    return samples_before(np.asarray([*places, len(rows)], np.int64), prepared.windows)


def make_mixed_order(spec: DataSpec, training: PreparedSet, batch_size: int) -> MixedOrder:
    """Return the order of the samples of a mixture. Raises DataError if a source has another number of samples than in
    the plan."""
    starts = sources_in(training)
    if np.diff(starts).tolist() != [member.num_samples for member in spec.mix]:
        raise DataError("the numbers of samples in the sources of the mixture have changed since the plan was made")
    blocks = block_starts(training) if spec.is_block_shuffled else None
    return MixedOrder(spec.seed, spec.mix, starts, blocks, batch_size, shuffle=spec.shuffle)


def _row_of(rows: SetRows) -> Callable[[int], int]:
    return lambda place: int(rows.at(np.asarray([place]))[0])


def list_members(
    training: PreparedSet, weights: Sequence[float | None], window: int | None, streams: int | None, *, shuffle: bool
) -> tuple[MemberSpec, ...]:
    """Return a MemberSpec for each source of a mixture: its share, number of training samples and block shuffle.

    `weights`: the weights in the recipe; None for a source without one. `window`, `streams`: the keys `shuffle_window`
    and `shuffle_streams` of the recipe. The sources divide the memory of the shuffle in proportion to their shares.
    """
    starts = sources_in(training)
    sizes = np.diff(starts).tolist()
    parts = shares(weights, sizes)
    size, blocks = training.size_bytes, block_starts(training) if shuffle else None
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
                roll = fit_block_shuffle(sizes[number], len(own), sample_bytes, most, streams)
        found.append(MemberSpec(name, parts[number], sizes[number], roll))
    return tuple(found)
