"""A share of the rows, by chance."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from declarative_train.components.data import Candidates, Draw, Split

Fraction = Annotated[float, Field(gt=0, lt=1)]


class RandomSplit(Split):
    """Rows by chance, the same for the same seed. `validation: 0.2` is the short form."""

    turn: ClassVar[int] = 3
    cuts_singly: ClassVar[bool] = True

    type: Literal["random"] = "random"
    fraction: Fraction
    """Share of the rows (of those that sets cut by `where` leave)."""

    def choose(self, rows: Candidates) -> Draw:
        return Draw(min(round(self.fraction * rows.num_total), rows.num_rows))
