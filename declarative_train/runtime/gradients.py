"""Gradients averaged over the data-parallel ranks in flat buckets, once per step, after the last backward.

For pipelines, whose schedules torch's DistributedDataParallel does not follow, and for models that fit in one bucket of
it: but for a first MiB its reducer has nothing to send before backward has ended, and costs a small step a tenth of its
time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from declarative_train.runtime.collectives import Ranks

BUCKET_BYTES = 25 << 20  # as DistributedDataParallel's, which has a first one of 1 MiB that leaves early

Sums = Sequence[tuple[torch.Tensor, ...]]


def are_one_bucket(parameters: Iterable[torch.Tensor]) -> bool:
    """The gradients of these go in one message."""
    found = list(parameters)
    return sum(item.nbytes for item in found) <= BUCKET_BYTES and len({item.dtype for item in found}) == 1


def average_gradients(gradients: Iterable[torch.Tensor], ranks: Ranks) -> None:
    """In place, in buckets of one dtype, so that a few large messages travel instead of many small ones."""
    bucket: list[torch.Tensor] = []
    size = 0
    for gradient in gradients:
        if bucket and (gradient.dtype != bucket[0].dtype or size + gradient.nbytes > BUCKET_BYTES):
            _average(bucket, ranks)
            bucket, size = [], 0
        bucket.append(gradient)
        size += gradient.nbytes
    if bucket:
        _average(bucket, ranks)


def average_with_sums(gradients: Sequence[torch.Tensor], sums: Sums, ranks: Ranks) -> Sums:
    """The same in one message, which takes the losses along: the ranks' `sums` added up, in the gradients' dtype."""
    flat = [value for chunk in sums for value in chunk]
    whole = torch.cat([*(gradient.reshape(-1) for gradient in gradients), torch.stack(flat).to(gradients[0].dtype)])
    ranks.sum_(whole)
    added = iter(whole[-len(flat) :].clone().unbind())  # not views, which would keep the gradients until a log
    _take_back(gradients, whole, ranks)
    return [tuple(next(added) for _ in chunk) for chunk in sums]


def _average(bucket: Sequence[torch.Tensor], ranks: Ranks) -> None:
    whole = torch.cat([gradient.reshape(-1) for gradient in bucket])
    ranks.sum_(whole)
    _take_back(bucket, whole, ranks)


def _take_back(gradients: Sequence[torch.Tensor], whole: torch.Tensor, ranks: Ranks) -> None:
    whole /= ranks.size
    sizes = [gradient.numel() for gradient in gradients]
    parts = torch.split(whole[: sum(sizes)], sizes)
    torch._foreach_copy_(list(gradients), [part.view_as(old) for part, old in zip(parts, gradients, strict=True)])
