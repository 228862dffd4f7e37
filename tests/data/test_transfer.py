"""Batches survive the way through a loader process, whatever their size and dtype."""

from __future__ import annotations

import numpy as np
import torch

from declarative_train.data.batch import SHARED_BYTES, Batch, move_batch, pack_batch, unpack_batch
from declarative_train.data.prefetch import by_workers


def batch(number: int) -> Batch:
    tensors = {
        "small": torch.full((3, 2), number, dtype=torch.float32),
        "large": torch.full((3, SHARED_BYTES), number, dtype=torch.int64),
        "half": torch.full((3,), number, dtype=torch.bfloat16),
        "flag": torch.tensor([True, False, True]),
    }
    return Batch(tensors, 2, torch.tensor([1.0, 1.0, 0.0]), np.asarray([number, number + 1]))


def test_small_tensors_cross_as_arrays_and_arrive_as_they_were() -> None:
    sent = pack_batch(batch(0))
    kinds = {name: isinstance(value, np.ndarray) for name, value in sent.tensors.items()}
    assert kinds == {"small": True, "large": False, "half": False, "flag": True}
    for number, found in enumerate(by_workers(lambda number: pack_batch(batch(number)), 0, 5, 2)):
        arrived, wanted = unpack_batch(found), batch(number)
        assert arrived.num_rows == 2
        assert arrived.sample_ids.tolist() == wanted.sample_ids.tolist()
        assert arrived.row_weight is not None
        assert arrived.row_weight.tolist() == [1.0, 1.0, 0.0]
        for name, tensor in wanted.tensors.items():
            assert torch.equal(arrived.tensors[name], tensor)
            assert arrived.tensors[name].dtype == tensor.dtype


def test_without_a_device_nothing_moves() -> None:
    one = batch(0)
    assert move_batch(one, None) is one
