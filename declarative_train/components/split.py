"""Interface of splits: rules that choose the rows of a set."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from declarative_train.components.component import Component
from declarative_train.components.data import Dataset

if TYPE_CHECKING:
    import numpy as np


class Candidates(NamedTuple):
    """Rows that a split may choose from, numbered 0..num_rows-1 in the order of the source.

    num_total    the number of rows that fractions refer to
    read         the values of a column
    shuffled     the numbers 0..n-1 in an order that depends on the seed and the set's name alone
    by, sort     of the window, if there is one
    behind       fraction that the later sets cut by `last` take
    """

    num_rows: int
    num_total: int
    read: "Callable[[str], np.ndarray]"
    shuffled: "Callable[[int], np.ndarray]"
    by: str | None = None
    sort: str | None = None
    behind: float = 0.0


class Draw(NamedTuple):
    """Result of a split: `num_rows` random candidates, which the package `data` draws without listing all numbers."""

    num_rows: int


class Split(Component, ABC):
    """Rule that cuts one set from the source's rows.

    `turn`: order of the rules. Cuts by value come first (0), then the last rows (1), then random whole groups (2), then
    random single rows (3); equal ones in the order of the recipe. Random single rows come last because they would break
    up groups.
    """

    turn: ClassVar[int]
    cuts_singly: ClassVar[bool] = False  # puts neighbouring rows in different sets, which breaks up windows
    of: str | None = None
    """Of a mixture: the source that it is cut from; left out: from each source separately."""

    def as_data(self, *, defaults: bool = True) -> dict[str, object]:
        found = super().as_data(defaults=defaults)
        return found if self.of is not None else {key: value for key, value in found.items() if key != "of"}

    def anywhere(self) -> "Split":
        """Return the same split without `of` (the name of a mixture's source), for a table that is not a mixture."""
        return self.model_copy(update={"of": None})

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that it reads."""
        return ()

    @property
    def own_source(self) -> Dataset | None:
        """The set's own source, when it is not cut from the main one."""
        return None

    @abstractmethod
    def choose(self, rows: Candidates) -> "np.ndarray | range | Draw":
        """Return the chosen row numbers, ascending. Raises ValueError with the reason in the recipe's words."""
