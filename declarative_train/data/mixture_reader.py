"""Reader of a mixture: samples from windows of block-shuffled sources, and from rows of the others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from declarative_train.data.batch import Taken
from declarative_train.data.batch_slices import locate
from declarative_train.data.materialize import PreparedSet
from declarative_train.data.mixing import MixedOrder
from declarative_train.data.sets import ReadSet, SampleSet
from declarative_train.data.spec import BatchSpec
from declarative_train.data.window_cache import RankNeeds, WindowsAhead

_LOOKED_AT = 1 << 18  # positions, for the streams that a rank reads


def gather_mixture(samples: SampleSet, order: MixedOrder, epoch: int, positions: np.ndarray) -> Taken:
    """Return samples of a set that is in memory or read row by row. Raises DataError.

    Random changes of an image depend on the pass of its source, so that an image that comes twice in an epoch differs.
    """
    placed = order.at(epoch, positions)
    found = order.samples(placed)
    numbers = order.numbers(found, placed)
    if not samples.prepared.late:
        return numbers, samples.gather(found)
    pieces = [(mine, samples.gather(found[mine], number)) for _, number, mine in placed.pieces()]
    return numbers, _join_pieces(pieces, len(positions))


class MixedWindows:
    """Samples that a rank needs of a mixture, from a step on. `real`: the positions that it takes of a step. `close`
    ends its threads.
    """

    def __init__(
        self,
        prepared: PreparedSet,
        order: MixedOrder,
        batch: BatchSpec,
        first_step: int,
        num_steps: int,
        real: Callable[[int], np.ndarray],
    ) -> None:
        self._order = order
        self._rows = ReadSet(prepared)
        first = locate(first_step, batch, prepared.num_samples)
        last = locate(first_step + max(num_steps, 1) - 1, batch, prepared.num_samples)
        ends = [
            found.epoch * prepared.num_samples + place
            for found, place in ((first, first.start), (last, last.start + last.size))
        ]
        streams = self._streams(batch, real) if order.rolled else {}
        self._ahead: dict[int, WindowsAhead] = {}
        for source, rolled in order.rolled.items():
            begin, end = order.schedule.before(source, np.asarray(ends)).tolist()
            (at_pass, place), last_pass = divmod(begin, rolled.num_samples), max(end - 1, begin) // rolled.num_samples
            needs = RankNeeds(streams[source], np.empty(0, np.int64), at_pass, place, last_pass)
            self._ahead[source] = WindowsAhead(prepared, rolled, needs)

    def _streams(self, batch: BatchSpec, real: Callable[[int], np.ndarray]) -> dict[int, tuple[int, ...]]:
        """Return the streams of each source that its slots use, from a sample of steps of an epoch.

        The streams vary with the number of samples that a batch has of a source. Samples of other streams are read row
        by row.
        """
        most = min(batch.steps_per_epoch, max(1, _LOOKED_AT // batch.global_batch_size))
        found: dict[int, set[int]] = {source: set() for source in self._order.rolled}
        for step in np.unique(np.linspace(1, batch.steps_per_epoch, most).astype(np.int64)).tolist():
            placed = self._order.at(0, real(step))
            for source, rolled in self._order.rolled.items():
                places = placed.places[placed.sources == source]
                found[source] |= set((np.searchsorted(rolled.stretches, places, side="right") - 1).tolist())
        return {source: tuple(sorted(streams)) for source, streams in found.items()}

    def gather(self, of_epoch: int | None, positions: np.ndarray) -> Taken:
        """Return the samples at these positions. Raises DataError."""
        placed = self._order.at(of_epoch or 0, positions)
        samples, pieces = np.empty(len(positions), np.int64), []
        for source, number, mine in placed.pieces():
            places = placed.places[mine]
            if source in self._ahead:
                ids, tensors = self._ahead[source].at(number, places)
            else:
                ids = self._order.of_source(source, number, places)
                tensors = self._rows.gather(ids, number)
            samples[mine] = ids
            pieces.append((mine, tensors))
        return self._order.numbers(samples, placed), _join_pieces(pieces, len(positions))

    def close(self) -> None:
        for ahead in self._ahead.values():
            ahead.close()


def _join_pieces(pieces: list[tuple[np.ndarray, dict[str, torch.Tensor]]], size: int) -> dict[str, torch.Tensor]:
    """Join the pieces, each row at its position."""
    back = np.empty(size, np.int64)
    back[np.concatenate([mine for mine, _ in pieces])] = np.arange(size)
    index = torch.from_numpy(back)
    return {name: torch.cat([tensors[name] for _, tensors in pieces]).index_select(0, index) for name in pieces[0][1]}
