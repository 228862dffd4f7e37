"""Share of one rank, or of one loader process, in the steps of a block-shuffled set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import gcd
from typing import Any

import numpy as np
import torch

from declarative_train.data.batch import Batch, make_batches, pack_batch, positions_of, unpack_batch
from declarative_train.data.batch_slices import locate, slots
from declarative_train.data.block_shuffle import RolledOrder
from declarative_train.data.materialize import PreparedSet
from declarative_train.data.mixing import MixedOrder
from declarative_train.data.mixture_reader import MixedWindows
from declarative_train.data.prefetch import by_workers
from declarative_train.data.spec import BatchSpec
from declarative_train.data.window_cache import RankNeeds, WindowsAhead


@dataclass(frozen=True, slots=True)
class RolledShare:
    """Share `part` of `num_parts`: each chunk of the rank is cut into that many runs of consecutive samples."""

    prepared: PreparedSet
    order: RolledOrder | MixedOrder
    batch: BatchSpec
    rank: int
    first_step: int
    num_steps: int
    part: int = 0
    num_parts: int = 1

    def windows(self) -> WindowsAhead | MixedWindows:
        if isinstance(self.order, MixedOrder):
            return MixedWindows(self.prepared, self.order, self.batch, self.first_step, self.num_steps, self.real)
        num_samples = self.prepared.num_samples
        last = locate(self.first_step + max(self.num_steps, 1) - 1, self.batch, num_samples)
        first = locate(self.first_step, self.batch, num_samples)
        needs = RankNeeds(self._streams(self.order), self._tail(), first.epoch, first.start, last.epoch)
        return WindowsAhead(self.prepared, self.order, needs)

    def positions(self, step: int) -> list[np.ndarray]:
        """Return the positions of a step, one array per chunk."""
        return self._of_part(step, real=False)

    def real(self, step: int) -> np.ndarray:
        """Return all positions of a step, without padding."""
        return np.concatenate(self._of_part(step, real=True))

    def _of_part(self, step: int, *, real: bool) -> list[np.ndarray]:
        """Return the positions of this part, one array per chunk. `real`: without padding."""
        found = locate(step, self.batch, self.prepared.num_samples)
        mine = slots(found, self.batch, self.rank)
        parts = [np.array_split(positions_of(slot), self.num_parts) for slot in mine]
        before = [sum(map(len, each[: self.part])) for each in parts]
        return [
            each[self.part][: max(0, slot.num_rows - skipped)] if real else each[self.part]
            for slot, each, skipped in zip(mine, parts, before, strict=True)
        ]

    def _streams(self, order: RolledOrder) -> tuple[int, ...]:
        """Return the streams of its slots; if their number does not divide the batch, they vary from step to step."""
        cycle = order.num_streams // gcd(order.num_streams, self.batch.global_batch_size)
        num_full = self.prepared.num_samples // self.batch.global_batch_size
        chunks = [each for step in range(1, min(cycle, num_full) + 1) for each in self._of_part(step, real=True)]
        positions = np.concatenate(chunks) if chunks else np.empty(0, np.int64)
        return tuple(int(stream) for stream in np.unique(order.turns(positions)[0]))

    def _tail(self) -> np.ndarray:
        """Return its positions in the last, partial batch of an epoch, whose slots belong to other streams."""
        last = self.batch.steps_per_epoch
        is_full = last * self.batch.global_batch_size <= self.prepared.num_samples
        return np.empty(0, np.int64) if is_full else self.real(last)


def by_parts(share: RolledShare, num_workers: int) -> Iterator[list[Batch]]:
    """Yield the rank's steps from loader processes: each reads its own streams and makes its part of every step."""
    makers = [_PartMaker(share, part, num_workers) for part in range(num_workers)]
    made = by_workers(partial(_make, makers), 0, share.num_steps * num_workers, num_workers)
    for step in range(share.first_step, share.first_step + share.num_steps):
        pieces = [next(made) for _ in range(num_workers)]
        found = locate(step, share.batch, share.prepared.num_samples)
        yield make_batches(slots(found, share.batch, share.rank), _join(pieces), found.epoch)


def _make(makers: list[_PartMaker], number: int) -> Any:
    """Make a part of a step; part p of each step is made by loader process p."""
    share = makers[number % len(makers)]
    return share.make(number // len(makers))


class _PartMaker:
    def __init__(self, share: RolledShare, part: int, num_parts: int) -> None:
        self._share = replace(share, part=part, num_parts=num_parts)
        self._windows: WindowsAhead | MixedWindows | None = None

    def make(self, number: int) -> Any:
        if self._windows is None:  # in the process that uses them: threads do not cross a fork
            self._windows = self._share.windows()
        step = self._share.first_step + number
        epoch = locate(step, self._share.batch, self._share.prepared.num_samples).epoch
        chunks = self._share.positions(step)
        positions = np.concatenate(chunks)
        if not len(positions):  # of a short step that the other parts make
            return Batch({}, 0, None, positions, epoch), [0] * len(chunks)
        ids, tensors = self._windows.gather(epoch, positions)
        return pack_batch(Batch(tensors, len(ids), None, ids, epoch)), [len(each) for each in chunks]


def _join(pieces: list[Any]) -> Callable[[int | None, np.ndarray], tuple[np.ndarray, dict[str, torch.Tensor]]]:
    """Join the parts of a step, chunk by chunk, to the result of one gather."""
    batches = [unpack_batch(batch) for batch, _ in pieces]
    places = [np.cumsum([0, *sizes]) for _, sizes in pieces]

    def take(_: int | None, positions: np.ndarray) -> tuple[np.ndarray, dict[str, torch.Tensor]]:
        runs = [
            (batch, slice(int(ends[chunk]), int(ends[chunk + 1])))
            for chunk in range(len(places[0]) - 1)
            for batch, ends in zip(batches, places, strict=True)
        ]
        full = [(batch, run) for batch, run in runs if run.stop > run.start]
        ids = np.concatenate([batch.sample_ids[run] for batch, run in full])
        names = max(batches, key=lambda batch: batch.num_rows).tensors
        return ids, {name: torch.cat([batch.tensors[name][run] for batch, run in full]) for name in names}

    return take
