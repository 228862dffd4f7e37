"""What the rows of a plugin's source hold, as it is declared; and what its table asks of the source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, model_validator

from declarative_train.components.data import Column

Number = Literal[
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"
]
Single = Literal["text", "bytes", "image", "date"]
_STORED = {"text": "object", "image": "bytes", "date": "datetime64[ns]"}


class ColumnKeys(BaseModel):
    """What each row has in a column."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    dtype: Number | Single
    """A number's, as numpy and torch call it; `text`; `bytes` of a file; `image`, a picture of Pillow; or `date`."""
    shape: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """Of the value of one row; left out: one number."""
    num_values: Annotated[int, Field(ge=1)] | None = None
    """The whole numbers are all in 0..num_values-1, which saves counting them."""

    @model_validator(mode="after")
    def _agrees(self) -> ColumnKeys:
        if self.dtype in _STORED | {"bytes": ""} and (self.shape or self.num_values is not None):
            raise ValueError(f"`dtype: {self.dtype}` takes no `shape` and no `num_values`: a row has one of them")
        if self.num_values is not None and "int" not in self.dtype:
            raise ValueError(f"`num_values` is of whole numbers, and `dtype` is {self.dtype}")
        return self

    @property
    def is_number(self) -> bool:
        return not self.shape and self.dtype not in _STORED | {"bytes": ""}

    def column(self, name: str) -> Column:
        return Column(name, _STORED.get(self.dtype, self.dtype), self.shape, self.num_values)

    def __str__(self) -> str:
        return f"{self.dtype} of shape {self.shape}" if self.shape else self.dtype


Declared = Annotated[dict[str, Number | Single | ColumnKeys], Field(min_length=1)]


class Described(Protocol):
    """A source of a plugin, as its fields and its text have it."""

    @property
    def type(self) -> str: ...
    @property
    def plugin_path(self) -> str: ...
    @property
    def plugin_class(self) -> str: ...
    @property
    def method(self) -> str: ...
    @property
    def num_arguments(self) -> int: ...
    @property
    def keys(self) -> Mapping[str, ColumnKeys] | None:
        """What each column holds; None: nobody declared it."""

    @property
    def hint(self) -> str:
        """What to do about a row that is not as declared."""

    def as_data(self) -> dict[str, object]: ...
    def settings(self) -> dict[str, Any]: ...
    def make(self, *first: object) -> Any:
        """An object of the class. Raises whatever its code raises."""
