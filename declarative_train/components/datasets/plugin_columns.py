"""Declared columns of a plugin's source, and the interface through which `plugin_table.py` uses the source."""

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
    """Description of a column that a plugin's source declares: dtype and shape of its values."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    dtype: Number | Single
    """Type of the values: a dtype of numpy or torch; `text`; `bytes` of a file; `image`, a picture of
    Pillow; or `date`."""
    shape: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """Shape of the value of one row. Left out: one number."""
    num_values: Annotated[int, Field(ge=1)] | None = None
    """All integers are in 0..num_values-1. Left out: they are counted."""

    @model_validator(mode="after")
    def _agrees(self) -> ColumnKeys:
        if self.dtype in _STORED | {"bytes": ""} and (self.shape or self.num_values is not None):
            raise ValueError(f"`dtype: {self.dtype}` takes no `shape` and no `num_values`: a row has one such value")
        if self.num_values is not None and "int" not in self.dtype:
            raise ValueError(f"`num_values` needs an integer dtype, and `dtype` is {self.dtype}")
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
    """Interface of a plugin's source that `PluginTable` uses. With it, `plugin_table.py` need not import `plugin.py`,
    which defines the source."""

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
        """Dtype and shape of each column by name, as the recipe or the user's class declares them. None if neither
        declares the columns."""

    @property
    def hint(self) -> str:
        """Help text for a row that does not match the declared columns."""

    def as_data(self) -> dict[str, object]: ...
    def settings(self) -> dict[str, Any]: ...
    def make(self, *first: object) -> Any:
        """Create an object of the user's class. `first`: first arguments of its constructor. Raises any exception of
        the user's code."""
