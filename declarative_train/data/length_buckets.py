"""Length buckets: the samples of a step are padded to the shortest bucket length that holds the longest of them.
Batches are made of samples of one bucket if possible.

The *bucket id* of a sample is the index of the shortest bucket in which all its fields fit. The bucket id of a step is
the highest one of its samples on all ranks. For example, if the buckets are 32 and 64, samples of 20 and 50 tokens have
the bucket ids 0 and 1, and a step with both is padded to 64 tokens.

`BucketOrder` makes batches of one bucket. The order depends on (seed, epoch, position) and the lengths of the samples
alone, so it does not depend on the number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from declarative_train.components.counter_rng import key_of
from declarative_train.components.fields import FIELDS
from declarative_train.data.field_reader import base_of
from declarative_train.data.order import permute
from declarative_train.data.split_rows import TRAINING

if TYPE_CHECKING:
    import torch

    from declarative_train.components.data import Field, Table
    from declarative_train.core.tensor_spec import TensorSpec
    from declarative_train.data.field_reader import FieldReader
    from declarative_train.data.rows import SetRows
    from declarative_train.data.spec import DataSpec

_MEGABATCH = 1024  # global batches: with k buckets, fewer than k of these batches have samples of several buckets


def buckets_of(data: DataSpec) -> dict[str, tuple[int, ...]]:
    """Return a dict from field name to the lengths of the field's buckets. Fields without buckets are left out."""
    found = {field.name: FIELDS.read(field.component).buckets for field in data.fields}
    return {name: buckets for name, buckets in found.items() if buckets}


def specs_at(data: DataSpec, bucket_id: int) -> dict[str, TensorSpec]:
    """Return the shape, dtype and range of each field in a step that is padded to the bucket `bucket_id`,
    an index from 0 for the shortest bucket."""
    specs, buckets = {field.name: field.tensor for field in data.fields}, buckets_of(data)
    return specs | {name: replace(specs[name], shape=(each[bucket_id],)) for name, each in buckets.items()}


def find_bucket_ids(table: Table, rows: SetRows, readers: Sequence[FieldReader]) -> np.ndarray | None:
    """Return (N,) uint8, the index of the shortest bucket in which each sample of a set fits; None if no field has
    buckets."""
    fields = {base_of(reader.name): reader for reader in readers if reader.field.buckets}
    if not fields:
        return None
    numbers = rows.at(np.arange(len(rows)))
    found = np.zeros(len(rows), np.uint8)
    for reader in fields.values():
        lengths = table.lengths(reader.columns[0].name, numbers)
        np.maximum(found, np.searchsorted(reader.field.buckets, lengths).astype(np.uint8), out=found)
    return found


def count_buckets(bucket_ids: np.ndarray | None, fields: Iterable[Field]) -> tuple[int, ...]:
    """Return how many samples are in each length bucket, from the shortest; () if no field has buckets.
    `bucket_ids`: index of the bucket of each sample; None if no field has buckets."""
    if bucket_ids is None:
        return ()
    num_buckets = max(len(field.buckets) for field in fields)
    return tuple(np.bincount(bucket_ids, minlength=num_buckets).tolist())


def bucket_shares(data: DataSpec) -> tuple[tuple[int, float], ...]:
    """Return (length, share of the training samples) for each bucket of the first field that has buckets."""
    lengths, counts = next(iter(buckets_of(data).values()), ()), data.set(TRAINING).buckets
    return tuple((length, count / sum(counts)) for length, count in zip(lengths, counts, strict=True))


def tokens_saved(data: DataSpec) -> int:
    """Return how many positions of padding the buckets save for each training sample, on average: the length of the
    longest bucket minus the length of the sample's bucket."""
    shares = bucket_shares(data)
    return round(sum((shares[-1][0] - length) * share for length, share in shares))


class BucketCuts:
    """Object that shortens the tensors of a batch to the length of a bucket. `bucket_ids` (N,): index of the bucket of
    each sample of the set. `buckets`: dict from field name to the lengths of its buckets."""

    def __init__(self, bucket_ids: np.ndarray, buckets: Mapping[str, tuple[int, ...]]) -> None:
        self.bucket_ids, self._buckets = bucket_ids, buckets

    def cut(self, tensors: Mapping[str, torch.Tensor], bucket_id: int) -> dict[str, torch.Tensor]:
        """Return the tensors of the fields with buckets, (R, T, ...), cut to the length of the bucket with index
        `bucket_id`. Tensors of other fields are returned unchanged."""
        lengths = {name: buckets[bucket_id] for name, buckets in self._buckets.items()}
        return {
            name: tensor[:, : lengths[name]].contiguous() if name in lengths else tensor
            for name, tensor in tensors.items()
        }


class BucketOrder:
    """Order of an epoch in which, where possible, all samples of a global batch are of the same length bucket.

    It rearranges the order without buckets, which `samples` computes: (epoch, positions) -> indices in the set. Each
    megabatch, `_MEGABATCH` consecutive global batches, is rearranged alone: first come batches of one bucket, then the
    samples that are left over, from the shortest bucket to the longest. Then the batches of the megabatch are shuffled.
    The last, partial batch of an epoch is not changed.

    `bucket_ids`: index of the bucket of each sample of the set. `batch_size`: samples in a global batch.
    """

    def __init__(
        self,
        seed: int,
        bucket_ids: np.ndarray,
        batch_size: int,
        samples: Callable[[int, np.ndarray], np.ndarray],
        *,
        shuffle: bool,
    ) -> None:
        self._seed, self._bucket_ids, self._size = seed, bucket_ids, batch_size
        self._samples, self._shuffle = samples, shuffle
        self._num_full = len(bucket_ids) // batch_size
        self._arranged = lru_cache(maxsize=2)(self._arrange)

    def positions(self, epoch: int, positions: np.ndarray) -> np.ndarray:
        """Convert positions in an epoch's order with length buckets to the positions of the same samples in its order
        without buckets (int64)."""
        found = positions.copy()
        megabatches = np.where(positions < self._num_full * self._size, positions // (self._size * _MEGABATCH), -1)
        for megabatch in np.unique(megabatches[megabatches >= 0]).tolist():
            mine = megabatches == megabatch
            arranged, _ = self._arranged(epoch, megabatch)
            found[mine] = arranged[positions[mine] - megabatch * self._size * _MEGABATCH]
        return found

    def bucket_id(self, epoch: int, start: int) -> int:
        """Return the index of the bucket to which the global batch from position `start` on is padded: the highest one
        of its samples."""
        number = start // self._size
        if number >= self._num_full:
            rest = self._samples(epoch, np.arange(start, len(self._bucket_ids)))
            return int(self._bucket_ids[rest].max())
        megabatch, index = divmod(number, _MEGABATCH)
        return int(self._arranged(epoch, megabatch)[1][index])

    def _arrange(self, epoch: int, megabatch: int) -> tuple[np.ndarray, np.ndarray]:
        """Sort the samples of one megabatch into global batches of one bucket, where possible. Return two arrays: for
        each position of the megabatch, the position of its sample in the order without buckets; for each batch, the
        highest bucket id in it."""
        size, first = self._size, megabatch * _MEGABATCH
        count = min(_MEGABATCH, self._num_full - first)
        before = np.arange(first * size, (first + count) * size)
        bucket_ids = self._bucket_ids[self._samples(epoch, before)]
        order = np.argsort(bucket_ids, kind="stable")
        counts = np.bincount(bucket_ids)
        index_in_bucket = np.arange(len(order)) - (np.cumsum(counts) - counts)[bucket_ids[order]]
        whole = index_in_bucket < (counts // size * size)[bucket_ids[order]]  # True in batches of one bucket
        batches = np.concatenate([order[whole], order[~whole]]).reshape(count, size)
        if self._shuffle:
            key = key_of("length buckets", self._seed, epoch, megabatch)
            batches = batches[permute(key, np.arange(count), count)]
        else:
            batches = batches[np.argsort(batches.min(1), kind="stable")]
        return before[batches.ravel()], bucket_ids[batches].max(1)
