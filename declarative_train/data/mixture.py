"""Mixture of sources: a pure function (seed, epoch, position) -> source, and sample of this source.

Each source has an integer *share*. A schedule chooses a source for each position, such that each source gets its share
of any range of positions. The source gives its next sample; after its last sample it begins a new *source epoch*, with
another order if the set is shuffled. An epoch of the mixture has as many positions as the sources have samples.

An example with two sources a and b of 3 samples each, the shares 2 and 1, and without shuffle:

epoch 0    a0 b0 a1 a2 b1 a0      the second source epoch of a begins with the last position
epoch 1    a1 b2 a2 a0 b0 a1      source epochs continue from one epoch of the mixture to the next
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm
from typing import cast

import numpy as np

from declarative_train.components.counter_rng import key_of
from declarative_train.data.order import permute
from declarative_train.data.prepared_set import HOLD_BYTES, PreparedSet
from declarative_train.data.shuffle import BlockShuffle, block_starts, default_window, fit_block_shuffle, samples_before
from declarative_train.data.spec import DataError, DataSpec, MixtureSourceSpec
from declarative_train.files.open_files import format_path

_MAX_TOTAL = 1 << 31  # largest sum of the shares; the product of two such numbers fits into 64 bits
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
        if sum(found) > _MAX_TOTAL:
            found = [max(1, round(each * _MAX_TOTAL / sum(found))) for each in found]
    common = gcd(*found) or 1
    return [each // common for each in found]


@dataclass(frozen=True, slots=True)
class _Node:
    """Inner node of the binary tree of a Schedule. Of every `total` positions that reach it, `left` go to the first of
    its two `branches`, the others to the second. A branch is the index of a source, or another node."""

    total: int
    left: int
    branches: tuple[_Node | int, _Node | int]

    def count_left(self, counts: np.ndarray) -> np.ndarray:
        """Return, for each number n in `counts`, how many of the first n positions that reach this node go to its first
        branch: n * left / total, rounded."""
        if self.total > _MAX_TOTAL:  # Python's integers are exact, but slow
            exact = (counts.astype(object) * self.left + self.total // 2) // self.total
            return np.asarray(exact, np.int64)
        rounds, rest = np.divmod(counts, self.total)
        found: np.ndarray = rounds * self.left + (rest * self.left + self.total // 2) // self.total
        return found


class Schedule:
    """Schedule of a mixture: the source of each position. `shares`: integer share of each source.

    It is a binary tree, in which the smallest shares are joined first (Huffman, 1952). At each node, the positions that
    take the first branch are spread evenly (Bresenham, 1965). So of any first n positions, the number of a source
    differs from its share by less than 2. It is exact if n is a multiple of the sum of the shares. There is no state:
    position 10^12 costs as much as position 0.
    """

    def __init__(self, shares: Sequence[int]) -> None:
        heap: list[tuple[int, int, _Node | int]] = [(share, source, source) for source, share in enumerate(shares)]
        heapq.heapify(heap)
        while len(heap) > 1:
            light, number, first = heapq.heappop(heap)
            heavy, _, second = heapq.heappop(heap)
            heapq.heappush(heap, (light + heavy, number, _Node(light + heavy, light, (first, second))))
        self._root = heap[0][2]
        self._paths = dict(_paths(self._root, ()))

    def assign(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (source, draw) for each position, as int64 arrays. `source`: index of the source that gives the
        sample. `draw`: how many earlier positions have the same source."""
        positions = np.asarray(positions, np.int64)
        source, draw = np.empty(len(positions), np.int64), np.empty(len(positions), np.int64)
        waiting = [(self._root, positions, np.arange(len(positions)))]
        while waiting:
            node, counts, where = waiting.pop()
            if isinstance(node, int):
                source[where], draw[where] = node, counts
                continue
            left = node.count_left(counts)
            goes = node.count_left(counts + 1) > left
            waiting.append((node.branches[0], left[goes], where[goes]))
            waiting.append((node.branches[1], (counts - left)[~goes], where[~goes]))
        return source, draw

    def count_before(self, source: int, positions: np.ndarray) -> np.ndarray:
        """Return, for each of `positions`, how many earlier positions get their sample from `source`."""
        counts = np.asarray(positions, np.int64)
        for node, is_left in self._paths[source]:
            left = node.count_left(counts)
            counts = left if is_left else counts - left
        return counts


def _paths(
    node: _Node | int, path: tuple[tuple[_Node, bool], ...]
) -> Iterator[tuple[int, tuple[tuple[_Node, bool], ...]]]:
    """Yield (source, path) for each source below `node`. A path has the nodes from the root of the tree on, each with
    True if the path goes on in its first branch. `path`: path to `node`."""
    if isinstance(node, int):
        yield node, path
        return
    yield from _paths(node.branches[0], (*path, (node, True)))
    yield from _paths(node.branches[1], (*path, (node, False)))


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """Samples that are drawn at N positions of a mixture, as three arrays (N,). `sources`: index of the source.
    `epochs`: epoch of this source. `indices`: index of the sample in the order of the source epoch. In a block-shuffled
    source, this is its offset (data/shuffle.py)."""

    sources: np.ndarray
    epochs: np.ndarray
    indices: np.ndarray

    def groups(self) -> Iterator[tuple[int, int, np.ndarray]]:
        """Group the N positions by source and source epoch. Yield (source, source epoch, indices of the group's
        positions among the N), sorted by source and source epoch."""
        for source in np.unique(self.sources).tolist():
            mine = np.flatnonzero(self.sources == source)
            for epoch in np.unique(self.epochs[mine]).tolist():
                yield source, epoch, mine[self.epochs[mine] == epoch]


class MixtureOrder:
    """Order of the samples of a mixture. A schedule chooses a source for each position of an epoch; the position gets
    the next sample of this source. After its last sample, a source begins again.

    The order does not depend on the number of ranks. `sources`: the sources in order. `starts` (sources + 1,): index in
    the set of the first sample of each source, then the number of all samples. `blocks`: index in the set of the first
    sample of each block; None if no source is block-shuffled. `block_shuffles`: dict from the index of a block-shuffled
    source to its order.
    """

    def __init__(
        self,
        seed: int,
        sources: Sequence[MixtureSourceSpec],
        starts: np.ndarray,
        blocks: np.ndarray | None,
        batch_size: int,
        *,
        shuffle: bool = True,
    ) -> None:
        self.num_samples = int(starts[-1])
        self._starts = np.asarray(starts, np.int64)
        self._sizes = np.diff(self._starts)
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._keys = [key_of("mixture", seed, source.name) for source in sources]
        self.schedule = Schedule([source.share for source in sources])
        self.block_shuffles: dict[int, BlockShuffle] = {}
        for number, source in enumerate(sources):
            if source.roll is not None and shuffle:
                assert blocks is not None
                inside = blocks[(blocks > starts[number]) & (blocks < starts[number + 1])]
                own = np.concatenate([starts[number : number + 1], inside, starts[number + 1 : number + 2]])
                self.block_shuffles[number] = BlockShuffle(self._keys[number], own, source.roll, batch_size)

    def draw(self, epoch: int, positions: np.ndarray) -> Draws:
        """Return the samples at these positions of an epoch of the mixture."""
        positions = np.asarray(positions, np.int64)
        sources, draws = self.schedule.assign(positions + epoch * self.num_samples)
        sizes = self._sizes[sources]
        epochs, indices = np.divmod(draws, sizes)
        for number, order in self.block_shuffles.items():
            mine = np.flatnonzero(sources == number)
            if len(mine):
                begin = epoch * self.num_samples + positions[mine] // self._batch_size * self._batch_size
                end = np.minimum(begin + self._batch_size, (epoch + 1) * self.num_samples)
                # draws of the source that are in the batch, counted from the start of the source epoch
                skipped, size = epochs[mine] * sizes[mine], sizes[mine]
                first = np.maximum(self.schedule.count_before(number, begin) - skipped, 0)
                last = np.minimum(self.schedule.count_before(number, end) - skipped, size)
                indices[mine] = order.offsets_of_range(indices[mine] - first, first, last - first)
        return Draws(sources, epochs, indices)

    def sample_indices(self, draws: Draws) -> np.ndarray:
        """Return, as int64, the index of each drawn sample in the training set, which contains the samples of all
        sources."""
        found = np.empty(len(draws.sources), np.int64)
        for source, epoch, mine in draws.groups():
            found[mine] = self.source_samples(source, epoch, draws.indices[mine])
        return found

    def source_samples(self, source: int, epoch: int, indices: np.ndarray) -> np.ndarray:
        """Return the indices in the training set of samples of one source, (N,). `source`: index of the source.
        `epoch`: epoch of the source. `indices`: as in `Draws`."""
        if source in self.block_shuffles:
            return self.block_shuffles[source].epoch_blocks(epoch).sample_indices(indices)
        start, size = int(self._starts[source]), int(self._sizes[source])
        if not self._shuffle:
            return start + indices
        return start + permute(key_of("order", self._keys[source], epoch), indices, size)

    def sample_numbers(self, samples: np.ndarray, draws: Draws) -> np.ndarray:
        """Return, for each drawn sample, the number that seeds its random transforms: index + source epoch * (size of
        the set). So a sample is transformed differently in each epoch of its source. `samples`: indices in the set of
        the samples of `draws`."""
        found: np.ndarray = samples + draws.epochs * self.num_samples
        return found


def list_mixture(data: DataSpec) -> list[tuple[str, ...]]:
    """Return the rows of a table for display, with one row for each source of the mixture. The columns are name, share
    of an epoch, number of samples, how often an epoch uses each sample, and type with path."""
    keys = cast("Mapping[str, Mapping[str, Mapping[str, object]]]", data.source["of"])
    whole, total = sum(each.share for each in data.mix), sum(each.num_samples for each in data.mix)
    rows: list[tuple[str, ...]] = []
    for each in data.mix:
        fraction, source = each.share / max(whole, 1), keys[each.name]["source"]
        times = fraction * total / max(each.num_samples, 1)
        path = source.get("path")
        first = path[0] if isinstance(path, list) else path
        where = str(source["type"]) if first is None else f"{source['type']} {format_path(str(first))}"
        rows.append((each.name, f"{fraction:.2%}", f"{each.num_samples:,}", f"{times:,.2f}", where))
    return rows


def source_starts(prepared: PreparedSet) -> np.ndarray:
    """Return (sources + 1,) int64: the index in the set of each source's first sample, then the number of all samples.
    (The samples of a source are consecutive in the set, whatever the order of its rows.)"""
    rows = prepared.rows

    def row_of(index: int) -> int:
        return int(rows.at(np.asarray([index]))[0])

    first_rows = [bisect_left(range(len(rows)), first, key=row_of) for _, first in prepared.table.members]
    return samples_before(np.asarray([*first_rows, len(rows)], np.int64), prepared.windows)


def make_mixture_order(spec: DataSpec, training: PreparedSet, batch_size: int) -> MixtureOrder:
    """Return the order of the samples of a mixture. Raises DataError if a source has another number of samples than in
    the plan."""
    starts = source_starts(training)
    if np.diff(starts).tolist() != [source.num_samples for source in spec.mix]:
        raise DataError("the numbers of samples in the sources of the mixture have changed since the plan was made")
    blocks = block_starts(training) if spec.is_block_shuffled else None
    return MixtureOrder(spec.seed, spec.mix, starts, blocks, batch_size, shuffle=spec.shuffle)


def specify_sources(
    training: PreparedSet, weights: Sequence[float | None], window: int | None, streams: int | None, *, shuffle: bool
) -> tuple[MixtureSourceSpec, ...]:
    """Return a MixtureSourceSpec for each source of a mixture: its share, number of training samples and block shuffle.

    `weights`: the weights in the recipe; None for a source without one. `window`, `streams`: the keys `shuffle_window`
    and `shuffle_streams` of the recipe. The sources divide the memory of the shuffle in proportion to their shares.
    """
    starts = source_starts(training)
    sizes = np.diff(starts).tolist()
    found = shares(weights, sizes)
    size, blocks = training.size_bytes, block_starts(training) if shuffle else None
    is_small = size is None or (size <= HOLD_BYTES if window is None else window >= training.num_samples)
    specs = []
    for number, (name, _) in enumerate(training.table.members):
        roll = None
        if blocks is not None and size is not None and not training.is_held and not is_small:
            num_blocks = int(((blocks >= starts[number]) & (blocks < starts[number + 1])).sum())
            sample_bytes = -(-size // training.num_samples)
            most = max(1, round(found[number] / sum(found) * (window or default_window(sample_bytes))))
            if num_blocks > 1:
                roll = fit_block_shuffle(sizes[number], num_blocks, sample_bytes, most, streams)
        specs.append(MixtureSourceSpec(name, found[number], sizes[number], roll))
    return tuple(specs)
