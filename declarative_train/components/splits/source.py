"""Split whose rows come from a source of its own."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import SerializeAsAny, field_validator, model_validator

from declarative_train.components.data import Dataset
from declarative_train.components.split import Candidates, Split


class SourceSplit(Split):
    """Rows of a separate source with the columns that the fields need. Short form: `{source: {...}}`."""

    turn: ClassVar[int] = 0

    type: Literal["source"] = "source"
    source: SerializeAsAny[Dataset]
    """Source of the rows of the set."""

    @field_validator("source", mode="before")
    @classmethod
    def _by_type(cls, value: object) -> object:
        from declarative_train.components.datasets import DATASETS

        if isinstance(value, dict) and ("plugin" in value or value.get("type") in DATASETS):
            return DATASETS.read(value)
        return value

    @model_validator(mode="after")
    def _of_itself(self) -> SourceSplit:
        if self.of is not None:
            raise ValueError("`of` takes a set from one source of a mixture, but this set has its own source")
        return self

    @property
    def own_source(self) -> Dataset:
        return self.source

    def choose(self, rows: Candidates) -> range:
        return range(rows.num_rows)
