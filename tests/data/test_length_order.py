"""The order with length buckets: a permutation of each epoch whose batches are of one bucket, but for a few."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from declarative_train.data import length_buckets
from declarative_train.data.length_buckets import BucketCuts, BucketOrder
from declarative_train.data.order import sample_index

SEED, SIZE = 3, 8


def draw_bucket_ids(num_samples: int) -> np.ndarray:
    return np.random.default_rng(0).choice(3, num_samples, p=[0.6, 0.3, 0.1]).astype(np.uint8)


def order(bucket_ids: np.ndarray, *, shuffle: bool = True) -> BucketOrder:
    def samples(epoch: int, positions: np.ndarray) -> np.ndarray:
        return sample_index(SEED, epoch, positions, len(bucket_ids)) if shuffle else positions

    return BucketOrder(SEED, bucket_ids, SIZE, samples, shuffle=shuffle)


@pytest.fixture(autouse=True)
def small_megabatches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(length_buckets, "_MEGABATCH", 16)


@pytest.mark.parametrize("num_samples", [5, 8, 128, 501, 1003])
@pytest.mark.parametrize("shuffle", [True, False])
def test_an_epoch_has_every_sample_once_in_batches_of_one_level(num_samples: int, shuffle: bool) -> None:
    bucket_ids = draw_bucket_ids(num_samples)
    found = order(bucket_ids, shuffle=shuffle)
    whole = [found.positions(epoch, np.arange(num_samples)) for epoch in (0, 1)]
    for epoch, positions in enumerate(whole):
        assert sorted(positions.tolist()) == list(range(num_samples))
        samples = sample_index(SEED, epoch, positions, num_samples) if shuffle else positions
        num_full = num_samples // SIZE
        batches = bucket_ids[samples[: num_full * SIZE]].reshape(-1, SIZE)
        assert (batches.min(1) != batches.max(1)).sum() <= 2 * -(-num_full // 16)
        assert [found.bucket_id(epoch, SIZE * number) for number in range(num_full)] == batches.max(1).tolist()
        if num_samples % SIZE:  # the last batch is that of the order without buckets
            assert positions[num_full * SIZE :].tolist() == list(range(num_full * SIZE, num_samples))
            assert found.bucket_id(epoch, num_full * SIZE) == bucket_ids[samples[num_full * SIZE :]].max()
    if shuffle and num_samples > 100:
        assert whole[0].tolist() != whole[1].tolist()


def test_a_position_depends_on_nothing_that_was_asked_before() -> None:
    bucket_ids = draw_bucket_ids(501)
    whole = order(bucket_ids).positions(1, np.arange(501))
    for step in (60, 0, 33):
        positions = np.arange(step * SIZE, step * SIZE + SIZE)
        assert order(bucket_ids).positions(1, positions).tolist() == whole[positions].tolist()
    mixed = np.random.default_rng(1).permutation(501)
    assert order(bucket_ids).positions(1, mixed).tolist() == whole[mixed].tolist()


def test_lengths_of_neighbours_do_not_ascend() -> None:
    bucket_ids = draw_bucket_ids(1003)
    found = order(bucket_ids)
    seen = [found.bucket_id(0, SIZE * number) for number in range(16)]
    assert seen != sorted(seen)
    assert len(set(seen)) > 1


def test_only_fields_with_buckets_are_cut() -> None:
    cuts = BucketCuts(np.zeros(2, np.uint8), {"text": (2, 5), "text.mask": (2, 5), "other": (3, 4)})
    tensors = {
        "text": torch.ones(2, 5),
        "text.mask": torch.ones(2, 5),
        "other": torch.ones(2, 4),
        "x": torch.ones(2, 9),
    }
    found = cuts.cut(tensors, 0)
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == {
        "text": (2, 2),
        "text.mask": (2, 2),
        "other": (2, 3),
        "x": (2, 9),
    }
    assert all(tensor.is_contiguous() for tensor in found.values())
