"""Interface of splits. A split chooses the rows of one set (validation, test) from the rows of the source."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from declarative_train.components.component import Component
from declarative_train.components.data import Dataset

if TYPE_CHECKING:
    import numpy as np


class Candidates(NamedTuple):
    """Rows that a split may choose from, numbered 0..num_rows-1 in the order of the source.

    num_total    number of rows to which a fraction refers; other sets may already have taken some of these rows
    read         function that takes a column name and returns its values
    shuffled     function that returns 0..n-1 in random order, which depends only on the seed and the name of the set
    by, sort     keys of `data.window`: the columns by which its rows are grouped and ordered; None if not set
    behind       for a split of type `last`: fraction of the rows at the end that sets later in the recipe take"""

    num_rows: int
    num_total: int
    read: "Callable[[str], np.ndarray]"
    shuffled: "Callable[[int], np.ndarray]"
    by: str | None = None
    sort: str | None = None
    behind: float = 0.0


class Draw(NamedTuple):
    """Number of random rows that a split takes. A split returns it in place of row indices; the package `data` then
    chooses the rows."""

    num_rows: int


class Split(Component, ABC):
    """Split: rule that chooses the rows of one set from the rows of the source. `turn`: splits choose in the order of
    this number. Splits with the same number choose in the order of the recipe; those of the type `last` in the reverse
    order.

    0   sets defined by values or by their own source
    1   the last rows
    2   random whole groups
    3   random single rows, last because they break up groups
    """

    turn: ClassVar[int]
    cuts_singly: ClassVar[bool] = False  # puts neighbouring rows in different sets, which breaks up windows
    of: str | None = None
    """The source of a mixture from which the set is taken. Left out: the set is taken from each source separately."""

    def as_data(self, *, defaults: bool = True) -> dict[str, object]:
        found = super().as_data(defaults=defaults)
        return found if self.of is not None else {key: value for key, value in found.items() if key != "of"}

    def anywhere(self) -> "Split":
        """Return a copy of the split without the key `of`, which names a source of a mixture. The copy chooses rows
        from the table of this source alone."""
        return self.model_copy(update={"of": None})

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns whose values the split reads."""
        return ()

    @property
    def own_source(self) -> Dataset | None:
        """Separate source of this set, all of whose rows are in the set. None if the rows of the set are taken from
        `data.source`."""
        return None

    @abstractmethod
    def choose(self, rows: Candidates) -> "np.ndarray | range | Draw":
        """Return the indices of the chosen rows, ascending. Raises ValueError, with a message for the user, if the rows
        cannot be chosen."""
