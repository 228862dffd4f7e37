"""Which rows of a table belong to a set, in the set's order, held in as little memory as they need."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from declarative_train.data.order import permuted


class Rows(ABC):
    """Row numbers by their place in the set."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def at(self, places: np.ndarray) -> np.ndarray:
        """int64 row numbers at these places."""

    @abstractmethod
    def between(self, start: int, stop: int) -> slice | np.ndarray:
        """The row numbers from place `start` up to `stop`, as `Table.read` takes them."""

    def chunks(self, size: int) -> Iterator[tuple[int, slice | np.ndarray]]:
        """All rows, `size` at a time, each with the place that it begins at."""
        for start in range(0, len(self), size):
            yield start, self.between(start, min(start + size, len(self)))

    def pick(self, places: np.ndarray) -> Rows:
        return RowList(self.at(places))


@dataclass(frozen=True, slots=True)
class RowRange(Rows):
    """Neighbours."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def at(self, places: np.ndarray) -> np.ndarray:
        return np.asarray(places, np.int64) + self.start

    def between(self, start: int, stop: int) -> slice:
        return slice(self.start + start, self.start + stop)


@dataclass(frozen=True, slots=True, eq=False)
class RowList(Rows):
    """Any rows, by number."""

    numbers: np.ndarray

    def __len__(self) -> int:
        return len(self.numbers)

    def at(self, places: np.ndarray) -> np.ndarray:
        found: np.ndarray = self.numbers[places]
        return found

    def between(self, start: int, stop: int) -> np.ndarray:
        return self.numbers[start:stop]


@dataclass(frozen=True, slots=True)
class RowDraw(Rows):
    """Some places of the permutation of others, for sets too large to list: not in the order of the file."""

    base: Rows
    key: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def at(self, places: np.ndarray) -> np.ndarray:
        return self.base.at(permuted(self.key, np.asarray(places, np.int64) + self.start, len(self.base)))

    def between(self, start: int, stop: int) -> np.ndarray:
        return self.at(np.arange(start, stop))
