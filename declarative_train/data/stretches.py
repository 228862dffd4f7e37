"""Rows of windows -> the rows of a batch, by few copies of many; memory for windows that is used again and again."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

_LONG = 8  # rows that lie together, on average, of batches that are written by runs
_TOO_LARGE = 2  # times what is needed: left for another

Stretch = tuple[int, int, int, int]
"""Places of a batch: from `first` on, every `step`, `count` runs of `length`."""


class Memory:
    """Arrays that are used again. A fresh one costs its first touch, as much as filling it, and what an allocator keeps
    of those that went differs from run to run. `most_bytes` may lie ready. Threads may come at once."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._spare: list[np.ndarray] = []  # bytes
        self._lock = threading.Lock()

    def array(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> np.ndarray:
        """With any content. What is given back is as large, or less than twice so."""
        need = int(np.prod(shape)) * dtype.itemsize
        with self._lock:
            fits = [place for place, each in enumerate(self._spare) if need <= len(each) <= _TOO_LARGE * need]
            best = min(fits, key=lambda place: len(self._spare[place]), default=None)
            found = np.empty(need, np.uint8) if best is None else self._spare.pop(best)
        return found[:need].view(dtype).reshape(shape)

    def give(self, array: np.ndarray) -> None:
        """One that `array` gave: nobody reads it any more."""
        whole = array
        while isinstance(whole.base, np.ndarray):
            whole = whole.base
        with self._lock:
            self._spare.append(whole)
            while sum(map(len, self._spare)) > self._most:
                self._spare.pop(0)  # of a size that is not asked for now

    def clear(self) -> None:
        with self._lock:
            self._spare.clear()

    def joined(self, arrays: Sequence[np.ndarray], order: np.ndarray | None) -> np.ndarray:
        """One below the other; row k is then row `order[k]`. By NumPy's `take`, which is several times as fast as
        `index_select` on short rows, and takes one thread."""
        shape = (sum(map(len, arrays)), *arrays[0].shape[1:])
        whole = self.array(shape, np.result_type(*arrays))
        np.concatenate(arrays, out=whole)
        if order is None:
            return whole
        found = self.array(shape, whole.dtype)
        np.take(whole, order, axis=0, out=found, mode="clip")  # other modes make a copy first
        self.give(whole)
        return found


def run_of(places: np.ndarray) -> slice | np.ndarray:
    """Neighbours in ascending order as a slice."""
    if len(places) and int(places[-1] - places[0]) == len(places) - 1 and bool((np.diff(places) == 1).all()):
        return slice(int(places[0]), int(places[-1]) + 1)
    return places


def together(
    places: Sequence[np.ndarray], pieces: Sequence[tuple[np.ndarray, dict[str, np.ndarray]]]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """What windows give, each for its ascending places of a batch, in memory of its own."""
    stretches = [_parts_of(mine) for mine in places]
    back = np.empty(sum(map(len, places)), np.int64)
    if any(each is None for each in stretches):
        back[np.concatenate(places)] = np.arange(len(back))

    def joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
        if any(each is None for each in stretches):
            return np.concatenate(arrays).take(back, axis=0)
        found = np.empty((len(back), *arrays[0].shape[1:]), np.result_type(*arrays))
        for array, each in zip(arrays, stretches, strict=True):
            for rows, stretch in each or ():
                _put(found, stretch, array[rows])
        return found

    names = pieces[0][1]
    return joined([ids for ids, _ in pieces]), {name: joined([made[name] for _, made in pieces]) for name in names}


def _parts_of(mine: np.ndarray) -> list[tuple[slice, Stretch]] | None:
    """Ascending places as a few stretches: one, or what is cut by the end of a window; None where they are many."""
    if (whole := _stretch(mine)) is not None:
        return [(slice(0, len(mine)), whole)]
    ends = [0, *(np.flatnonzero(np.diff(mine) != 1) + 1).tolist(), len(mine)]
    if len(ends) > 1 + len(mine) // _LONG:
        return None
    return [(slice(begin, end), (int(mine[begin]), end - begin, 1, end - begin)) for begin, end in pairwise(ends)]


def _stretch(mine: np.ndarray) -> Stretch | None:
    """Ascending places as one; None where they are not."""
    breaks = np.flatnonzero(np.diff(mine) != 1)
    length = int(breaks[0]) + 1 if len(breaks) else len(mine)
    count = len(breaks) + 1
    if count * length != len(mine):
        return None
    firsts = mine[::length]
    step = int(firsts[1] - firsts[0]) if count > 1 else length
    is_even = bool((np.diff(firsts) == step).all()) and bool((breaks == np.arange(1, count) * length - 1).all())
    return (int(mine[0]), step, count, length) if is_even else None


def _put(found: np.ndarray, stretch: Stretch, rows: np.ndarray) -> None:
    """Write rows to where they stand in a batch."""
    first, step, count, length = stretch
    if count == 1:
        found[first : first + length] = rows
        return
    strides = (step * found.strides[0], *found.strides)
    target = np.lib.stride_tricks.as_strided(found[first:], (count, length, *found.shape[1:]), strides)
    target[...] = rows.reshape(count, length, *rows.shape[1:])
