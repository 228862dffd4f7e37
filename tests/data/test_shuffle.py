"""Block shuffle: a permutation for any sizes, the streams it promises, and the same for ever."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from declarative_train.data.shuffle import POOL_BYTES, STREAMS, BlockShuffle, divide_blocks, fit_block_shuffle
from declarative_train.data.spec import BlockShuffleSpec


def made(trial: int) -> tuple[BlockShuffle, int]:
    """An order of odd sizes, and its batch size."""
    draws = np.random.default_rng(trial)
    starts = np.concatenate([[0], np.cumsum(draws.integers(1, 30, draws.integers(1, 40)))])
    shape, size = BlockShuffleSpec(int(draws.integers(1, 20)), int(draws.integers(1, 6))), int(draws.integers(1, 60))
    return BlockShuffle(trial, starts, shape, size), size


@pytest.mark.parametrize("start", range(0, 120, 20))
def test_every_sample_once_in_each_epoch(start: int) -> None:
    for trial in range(start, start + 20):
        order, _ = made(trial)
        count = order.num_samples
        epochs = [order.sample_indices(epoch, np.arange(count)) for epoch in (0, 1)]
        for found in epochs:
            assert sorted(found.tolist()) == list(range(count))
        if count > 20:
            assert (epochs[0] != epochs[1]).any()
        asked = np.random.default_rng(0).integers(0, count, 50)  # any positions, in any order
        assert (order.sample_indices(0, asked) == epochs[0][asked]).all()


def test_a_batch_is_a_segment_of_the_round_robin_sorted_by_stream() -> None:
    for trial in range(60):
        order, size = made(trial)
        count = order.num_samples
        wanted = [
            each
            for begin in range(0, count, size)
            for each in sorted(
                divmod(place, order.num_streams)[::-1] for place in range(begin, min(begin + size, count))
            )
        ]
        streams, turns = order.streams(np.arange(count))
        assert list(zip(streams.tolist(), turns.tolist(), strict=True)) == wanted


def test_the_batch_size_moves_no_sample_of_the_round_robin() -> None:
    starts, shape = np.arange(0, 1001, 10), BlockShuffleSpec(8, 3)
    batches = {}
    for size in (8, 20, 50, 1000):
        found = BlockShuffle(0, starts, shape, size).sample_indices(0, np.arange(1000))
        batches[size] = [frozenset(found[begin : begin + size].tolist()) for begin in range(0, 1000, size)]
    for begin in range(0, 1000, 200):
        at = {size: frozenset().union(*batches[size][begin // size : (begin + 200) // size]) for size in (8, 20, 50)}
        assert at[8] == at[20] == at[50]
    assert batches[1000] == [frozenset(range(1000))]


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_rank_reads_its_share_of_the_streams(ranks: int) -> None:
    order = BlockShuffle(0, np.arange(0, 100_001, 100), BlockShuffleSpec(16, 4), 64)
    read: list[set[int]] = []
    for rank in range(ranks):
        slots = np.concatenate(
            [np.arange(begin, begin + 64 // ranks) for begin in range(64 // ranks * rank, 100_000, 64)]
        )
        streams, _ = order.streams(slots[slots < 99_968])
        assert len(set(streams.tolist())) == 16 // ranks
        samples = order.sample_indices(0, slots[slots < 99_968])
        read.append(set((samples // 100).tolist()))
    assert sum(map(len, read)) <= 1.05 * 1000  # blocks; one at the end of a stream may be read twice


def test_windows_hold_what_is_mixed_and_no_more_blocks_than_asked() -> None:
    for trial in range(40):
        order, _ = made(trial)
        blocks = order.epoch_blocks(2)
        total = 0
        for number in range(len(blocks.window_starts) - 1):
            window = blocks.window(number)
            pieces = blocks.block_ranges(window)
            samples = np.concatenate([np.arange(piece.first, piece.first + piece.count) for piece in pieces])
            places = window.start + np.arange(window.size)
            assert len(samples) == window.size > 0
            assert (samples[window.index_of(places)] == blocks.sample_indices(places)).all()
            assert len(pieces) <= order.window_blocks + 1
            total += window.size
        assert total == order.num_samples


def test_streams_change_their_windows_at_different_times() -> None:
    order = BlockShuffle(0, np.arange(0, 64_001, 10), BlockShuffleSpec(16, 16), 16)
    blocks = order.epoch_blocks(0)
    third = [
        int(blocks.window_starts[blocks.stream_windows[stream] + 2] - order.stream_starts[stream])
        for stream in range(16)
    ]
    assert len(set(third)) == 16
    first = [
        int(blocks.window_starts[blocks.stream_windows[stream] + 1] - order.stream_starts[stream])
        for stream in range(16)
    ]
    assert max(first) <= 10  # one block, so that the first batch is there soon


def test_neighbours_are_far_from_each_other() -> None:
    order = BlockShuffle(0, np.arange(0, 1_000_001, 1000), BlockShuffleSpec(16, 8), 256)
    batch = order.sample_indices(0, np.arange(256 * 2000, 256 * 2001))
    assert len(set((batch // 1000).tolist())) > 80  # of 16 x 8 blocks in use, of 1,000


def test_a_billion_samples_cost_their_blocks() -> None:
    order = BlockShuffle(0, np.arange(0, 10**9 + 1, 50_000), BlockShuffleSpec(32, 4), 1024)
    late = order.sample_indices(5, np.arange(900_000_000, 900_002_048))
    assert len(np.unique(late)) == 2048


def test_the_order_stays_what_it_is() -> None:
    """Runs go on from checkpoints of other versions: none of these numbers may change."""
    order = BlockShuffle(7, np.asarray([0, 5, 9, 20, 31, 40, 52]), BlockShuffleSpec(3, 2), 8)
    assert order.sample_indices(0, np.arange(16)).tolist() == [8, 6, 5, 4, 3, 35, 47, 46, 7, 9, 14, 31, 33, 50, 51, 49]
    large = BlockShuffle(7, np.arange(0, 10**7 + 1, 40_000), BlockShuffleSpec(8, 4), 96)
    digest = hashlib.sha256(large.sample_indices(1, np.arange(5_000_000, 5_010_000)).tobytes()).hexdigest()
    assert digest[:16] == "dc55675a2ff11b89"


@pytest.mark.parametrize(
    ("num_samples", "num_blocks", "sample_bytes", "window", "streams", "wanted"),
    [
        (10**9, 20_000, 64, None, None, BlockShuffleSpec(STREAMS, 5)),  # 168 blocks of 3.2 MB
        (10**8, 100, 64, None, None, BlockShuffleSpec(4, 2)),  # 8 blocks of 64 MB
        (10**8, 2, 64, None, None, BlockShuffleSpec(1, 1)),
        (10**6, 1000, 64, 32_000, None, BlockShuffleSpec(16, 2)),
        (10**6, 1000, 64, 32_000, 4, BlockShuffleSpec(4, 8)),
        (10, 10, POOL_BYTES, None, 64, BlockShuffleSpec(10, 1)),
    ],
)
def test_streams_and_windows_follow_from_the_blocks(
    num_samples: int,
    num_blocks: int,
    sample_bytes: int,
    window: int | None,
    streams: int | None,
    wanted: BlockShuffleSpec,
) -> None:
    assert fit_block_shuffle(num_samples, num_blocks, sample_bytes, window, streams) == wanted


def test_blocks_of_many_samples_are_cut_into_equal_ones() -> None:
    assert divide_blocks(np.asarray([0, 3, 13, 14]), 4).tolist() == [0, 3, 6, 9, 13, 14]
    assert divide_blocks(np.asarray([5, 9]), 4).tolist() == [5, 9]
