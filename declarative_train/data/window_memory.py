"""Memory of windows, and copies of their rows to the rows of a batch in few large operations."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np


class Arena:
    """Memory for the rows of windows, one array per field, so that a batch takes rows of several windows in one gather.

    It is reused, the first pages first: touching a new page costs as much as filling it, and pages that are never used
    cost nothing. It is safe for threads.
    rows  by field, (capacity, *row shape)
    """

    def __init__(self, capacity: int, kinds: Mapping[str, tuple[tuple[int, ...], np.dtype[np.generic]]]) -> None:
        self.rows = {name: np.empty((capacity, *shape), dtype) for name, (shape, dtype) in kinds.items()}
        self._free = [(0, capacity)]  # stretches (first, end), ascending, never side by side
        self._lock = threading.Lock()

    def take(self, count: int) -> int | None:
        """Return the first of `count` consecutive free rows, with any content; None: there is no such run."""
        with self._lock:
            for place, (first, end) in enumerate(self._free):
                if end - first >= count:
                    self._free[place : place + 1] = [(first + count, end)] if end - first > count else []
                    return first
        return None

    def give(self, first: int, count: int) -> None:
        """Free rows that were taken; they must not be read after this."""
        with self._lock:
            stretches = sorted([*self._free, (first, first + count)])
            self._free = stretches[:1]
            for begin, end in stretches[1:]:
                if begin == self._free[-1][1]:
                    self._free[-1] = (self._free[-1][0], end)
                else:
                    self._free.append((begin, end))


class Runs(NamedTuple):
    """Runs of rows of a batch that are also consecutive elsewhere. (R,) each, in the order of the batch: the place of a
    run in the batch, the number of its first row, and its length.
    """

    places: np.ndarray
    firsts: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, numbers: np.ndarray) -> Runs:
        """Find the runs in (N,) int64, the numbers of the rows of a batch."""
        places = np.concatenate([np.zeros(1, np.int64), np.flatnonzero(np.diff(numbers) != 1) + 1])
        return cls(places, numbers[places], np.diff(places, append=len(numbers)))

    def cut(self, ends: np.ndarray) -> tuple[Runs, np.ndarray]:
        """Cut the runs so that none crosses one of `ends`; return them with the index of the last end up to each.

        `ends` are ascending numbers; the first is at or before each run.
        """
        last = np.searchsorted(ends, self.firsts + self.lengths - 1, side="right") - 1
        of = np.searchsorted(ends, self.firsts, side="right") - 1
        if (of == last).all():
            return self, of
        counts = last - of + 1
        run = np.repeat(np.arange(len(of)), counts)
        of = np.arange(len(run)) - np.repeat(np.cumsum(counts) - counts, counts) + of[run]
        begins = np.maximum(self.firsts[run], ends[of])
        stops = np.minimum((self.firsts + self.lengths)[run], np.append(ends, np.iinfo(np.int64).max)[of + 1])
        return Runs(self.places[run] + begins - self.firsts[run], begins, stops - begins), of

    def by(self, owners: np.ndarray) -> Iterator[tuple[int, Runs]]:
        """Yield the runs of each owner. `owners` (R,)."""
        order = np.argsort(owners, kind="stable")
        for mine in np.split(order, np.flatnonzero(np.diff(owners[order])) + 1):
            yield int(owners[mine[0]]), Runs(self.places[mine], self.firsts[mine], self.lengths[mine])

    def numbers(self, first: int = 0) -> slice | np.ndarray:
        """Return the numbers of all rows in turn, counted from `first`; as a slice if all runs are consecutive."""
        begins = self.firsts - first
        if bool((begins[1:] == begins[:-1] + self.lengths[:-1]).all()):
            return slice(int(begins[0]), int(begins[-1] + self.lengths[-1]))
        return _count_from(begins, self.lengths)

    def list_numbers(self) -> np.ndarray:
        return _count_from(self.firsts, self.lengths)

    def list_places(self) -> np.ndarray:
        """Return the places of all rows in the batch, in turn."""
        return _count_from(self.places, self.lengths)

    def put(self, found: np.ndarray, rows: np.ndarray) -> None:
        """Write the rows to their places in a batch."""
        lengths, count, done = self.lengths, len(self.lengths), 0
        begin = int(count > 1 and lengths[0] != lengths[1])  # the end of a window has cut it, or the last
        stop = count - int(count > 1 and lengths[-1] != lengths[-2])
        for each in (slice(0, begin), slice(begin, stop), slice(max(begin, stop), count)):
            if size := int(lengths[each].sum()):
                _put(found, self.places[each], lengths[each], rows[done : done + size])
            done += size


def _put(found: np.ndarray, places: np.ndarray, lengths: np.ndarray, rows: np.ndarray) -> None:
    count, length, first = len(places), int(lengths[0]), int(places[0])
    step = int(places[1]) - first if count > 1 else length
    if bool((lengths == length).all()) and bool((np.diff(places) == step).all()):
        strides = (step * found.strides[0], *found.strides)
        target = np.lib.stride_tricks.as_strided(found[first:], (count, length, *found.shape[1:]), strides)
        target[...] = rows.reshape(count, length, *rows.shape[1:])
    else:
        found[_count_from(places, lengths)] = rows


def _count_from(begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return consecutive numbers, `lengths` of them from each of `begins` on."""
    before = np.cumsum(lengths) - lengths
    found: np.ndarray = np.arange(int(lengths.sum())) + np.repeat(begins - before, lengths)
    return found
