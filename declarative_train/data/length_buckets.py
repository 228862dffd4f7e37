"""Length buckets: the samples of a step are padded to the shortest bucket length that holds the longest of them.
Batches are made of samples of one bucket if possible.

A *level* is the index of a bucket, 0 for the shortest. All fields with buckets have the same number of buckets. The
level of a sample is the lowest level at which all its fields fit. The level of a step is the highest level of its
samples on all ranks.

The order of an epoch is the order without buckets, changed within windows of `_WINDOW` global batches. In each window,
the samples of each level fill as many whole batches as possible, in their order. The samples that are left over, less
than a batch of each level, fill the remaining batches of the window, from the shortest level to the longest. Then the
batches of the window are shuffled. The last, partial batch of an epoch is not changed.

Lengths and order follow from (seed, epoch, position) and the lengths of the samples alone, so they do not depend on the
number of ranks.
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

_WINDOW = 1024  # global batches: with k buckets, fewer than k of these batches have samples of several levels


def buckets_of(data: DataSpec) -> dict[str, tuple[int, ...]]:
    """Return a dict from field name to the lengths of the field's buckets. Fields without buckets are left out."""
    found = {field.name: FIELDS.read(field.component).buckets for field in data.fields}
    return {name: buckets for name, buckets in found.items() if buckets}


def specs_at(data: DataSpec, level: int) -> dict[str, TensorSpec]:
    """Return the shape, dtype and range of each field in a step whose length bucket has the index `level`."""
    specs, buckets = {field.name: field.tensor for field in data.fields}, buckets_of(data)
    return specs | {name: replace(specs[name], shape=(each[level],)) for name, each in buckets.items()}


def levels_of(table: Table, rows: SetRows, parts: Sequence[FieldReader]) -> np.ndarray | None:
    """Return (N,) uint8, the level (index of the length bucket) of each sample of a set; None if no field has
    buckets."""
    fields = {base_of(part.name): part for part in parts if part.field.buckets}
    if not fields:
        return None
    numbers = rows.at(np.arange(len(rows)))
    found = np.zeros(len(rows), np.uint8)
    for part in fields.values():
        lengths = table.lengths(part.columns[0].name, numbers)
        np.maximum(found, np.searchsorted(part.field.buckets, lengths).astype(np.uint8), out=found)
    return found


def count_levels(levels: np.ndarray | None, fields: Iterable[Field]) -> tuple[int, ...]:
    """Return how many samples are in each length bucket, from the shortest; () if no field has buckets. `levels`: index
    of the bucket of each sample; None if no field has buckets."""
    if levels is None:
        return ()
    num_levels = max(len(field.buckets) for field in fields)
    return tuple(np.bincount(levels, minlength=num_levels).tolist())


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
    """Object that shortens the tensors of a batch to the length of a bucket. `levels` (N,): level (index of the bucket)
    of each sample of the set."""

    def __init__(self, levels: np.ndarray, buckets: Mapping[str, tuple[int, ...]]) -> None:
        self.levels, self._buckets = levels, buckets

    def cut(self, tensors: Mapping[str, torch.Tensor], level: int) -> dict[str, torch.Tensor]:
        """Return the tensors of the fields with buckets, (R, T, ...), cut to the length of the bucket with index
        `level`. Tensors of other fields are returned unchanged."""
        lengths = {name: buckets[level] for name, buckets in self._buckets.items()}
        return {
            name: tensor[:, : lengths[name]].contiguous() if name in lengths else tensor
            for name, tensor in tensors.items()
        }


class BucketOrder:
    """Order of an epoch in which, where possible, all samples of a batch have the same level (index of the length
    bucket).

    It rearranges the order without buckets, which `samples` computes: (epoch, positions) -> indices in the set.
    `levels`: level of each sample of the set.
    """

    def __init__(
        self,
        seed: int,
        levels: np.ndarray,
        batch_size: int,
        samples: Callable[[int, np.ndarray], np.ndarray],
        *,
        shuffle: bool,
    ) -> None:
        self._seed, self._levels, self._size = seed, levels, batch_size
        self._samples, self._shuffle = samples, shuffle
        self._num_full = len(levels) // batch_size
        self._window = lru_cache(maxsize=2)(self._arrange)

    def positions(self, epoch: int, positions: np.ndarray) -> np.ndarray:
        """Convert positions in an epoch's order with length buckets to the positions of the same samples in its order
        without buckets (int64)."""
        found = positions.copy()
        windows = np.where(positions < self._num_full * self._size, positions // (self._size * _WINDOW), -1)
        for window in np.unique(windows[windows >= 0]).tolist():
            mine = windows == window
            arranged, _ = self._window(epoch, window)
            found[mine] = arranged[positions[mine] - window * self._size * _WINDOW]
        return found

    def level(self, epoch: int, start: int) -> int:
        """Return the level (index of the length bucket) of the global batch that starts at position `start`."""
        number = start // self._size
        if number >= self._num_full:
            rest = self._samples(epoch, np.arange(start, len(self._levels)))
            return int(self._levels[rest].max())
        window, place = divmod(number, _WINDOW)
        return int(self._window(epoch, window)[1][place])

    def _arrange(self, epoch: int, window: int) -> tuple[np.ndarray, np.ndarray]:
        """Sort the samples of one window of global batches into batches of equal level (index of the length bucket),
        where possible. Return two arrays: for each position of the window, the position of its sample in the order
        without buckets; for each batch, the highest level in it."""
        size, first = self._size, window * _WINDOW
        count = min(_WINDOW, self._num_full - first)
        before = np.arange(first * size, (first + count) * size)
        levels = self._levels[self._samples(epoch, before)]
        order = np.argsort(levels, kind="stable")
        ends = np.cumsum(np.bincount(levels))
        rank_in_level = np.arange(len(order)) - (ends - np.bincount(levels))[levels[order]]
        whole = rank_in_level < (np.bincount(levels) // size * size)[levels[order]]
        batches = np.concatenate([order[whole], order[~whole]]).reshape(count, size)
        if self._shuffle:
            key = key_of("length buckets", self._seed, epoch, window)
            batches = batches[permute(key, np.arange(count), count)]
        else:
            batches = batches[np.argsort(batches.min(1), kind="stable")]
        return before[batches.ravel()], levels[batches].max(1)
