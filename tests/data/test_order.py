"""The order of the samples: a permutation of every epoch, of any size, the same for ever."""

from __future__ import annotations

import numpy as np
import pytest

from declarative_train.data.order import permute, sample_index


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100, 65_535, 65_536, 65_537, 100_000, (1 << 17) + 1])
def test_every_epoch_is_a_permutation(size: int) -> None:
    for epoch in (0, 1):
        order = sample_index(3, epoch, np.arange(size), size)
        assert order.dtype == np.int64
        assert np.array_equal(np.sort(order), np.arange(size))


def test_positions_may_be_asked_for_in_any_portion() -> None:
    for size in (1000, 200_000):
        whole = sample_index(0, 0, np.arange(size), size)
        some = np.asarray([size - 1, 0, 17, 17])
        assert sample_index(0, 0, some, size).tolist() == whole[some].tolist()


def test_seeds_and_epochs_differ() -> None:
    for size in (1000, 200_000):
        orders = [sample_index(seed, epoch, np.arange(size), size) for seed in range(3) for epoch in range(3)]
        for number, order in enumerate(orders):
            for other in orders[:number]:
                assert (order == other).mean() < 0.01


def test_a_million_millions_cost_no_memory() -> None:
    size = 10**12
    positions = np.concatenate([np.arange(50_000), np.arange(size - 50_000, size)])
    order = sample_index(0, 7, positions, size)
    assert len(np.unique(order)) == len(positions)
    assert order.min() >= 0
    assert order.max() < size
    assert abs(order.mean() / size - 0.5) < 0.01
    counts = np.histogram(order, bins=20, range=(0, size))[0]
    assert (np.abs(counts - 5_000) < 6 * np.sqrt(5_000)).all()


def test_neighbours_are_not_kept_together() -> None:
    for size in (10_000, 1_000_000):
        order = sample_index(0, 0, np.arange(10_000), size)
        assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.04
        assert (np.abs(np.diff(order)) == 1).sum() < 15


def test_small_permutations_are_all_likely() -> None:
    counts: dict[tuple[int, ...], int] = {}
    for key in range(6_000):
        found = tuple(permute(key, np.arange(3), 3).tolist())
        counts[found] = counts.get(found, 0) + 1
    assert len(counts) == 6
    assert all(abs(count - 1_000) < 150 for count in counts.values())


def test_the_order_never_changes() -> None:
    """A checkpoint of last year goes on with the samples that would have come next."""
    assert sample_index(0, 0, np.arange(6), 10).tolist() == PINNED_SMALL
    assert sample_index(42, 3, np.arange(4), 10**9).tolist() == PINNED_LARGE


PINNED_SMALL = [0, 6, 7, 3, 1, 5]
PINNED_LARGE = [922767929, 910944602, 578704237, 489053198]
