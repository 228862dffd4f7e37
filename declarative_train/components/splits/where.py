"""Split that chooses rows by the values of a column."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from declarative_train.components.split import Candidates, Split

if TYPE_CHECKING:
    import numpy as np

Value = int | float | str | bool
_TESTS = ("in_", "not_in", "equals", "less", "at_most", "greater", "at_least")


class WhereSplit(Split):
    """Rows selected by a column's value: `{type: where, column: month, in: [11, 12]}`. If several conditions are given,
    all must hold.

    Dates are compared with text such as `2024-01-31`. A row with a missing value is not selected.
    """

    turn: ClassVar[int] = 0

    type: Literal["where"] = "where"
    column: str
    """Column to compare."""
    in_: Annotated[tuple[Value, ...], Field(min_length=1)] | None = Field(None, alias="in")
    """The value is one of these."""
    not_in: Annotated[tuple[Value, ...], Field(min_length=1)] | None = None
    """The value is not one of these."""
    equals: Value | None = None
    """The value equals this."""
    less: Value | None = None
    """The value is less than this."""
    at_most: Value | None = None
    """The value is this or less."""
    greater: Value | None = None
    """The value is more than this."""
    at_least: Value | None = None
    """The value is this or more."""

    @model_validator(mode="after")
    def _says_something(self) -> WhereSplit:
        if all(getattr(self, name) is None for name in _TESTS):
            raise ValueError("set the values: `in`, `not_in`, `equals`, `less`, `at_most`, `greater` or `at_least`")
        return self

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    def choose(self, rows: Candidates) -> np.ndarray:
        import numpy as np

        values = rows.read(self.column)
        passes = _present(values)
        for name in _TESTS:
            asked = getattr(self, name)
            if asked is not None:
                passes[passes] = self._test(name, values[passes], asked)
        return np.flatnonzero(passes)

    def _test(self, name: str, values: np.ndarray, asked: Any) -> np.ndarray:
        import numpy as np

        if name in ("in_", "not_in"):
            exact = values.dtype if values.dtype.kind in "OM" else None  # text and dates; numbers as written
            known = np.asarray([self._comparable(values, each) for each in asked], exact)
            inside: np.ndarray = np.isin(values, known)
            return inside if name == "in_" else ~inside
        value = self._comparable(values, asked)
        compare: dict[str, Any] = {
            "equals": np.equal,
            "less": np.less,
            "at_most": np.less_equal,
            "greater": np.greater,
            "at_least": np.greater_equal,
        }
        passed: np.ndarray = compare[name](values, value)
        return passed.astype(bool)

    def _comparable(self, values: np.ndarray, asked: Value) -> Any:
        import numpy as np

        holds = {"O": "text", "M": "dates", "b": "true and false"}.get(values.dtype.kind, "numbers")
        if holds == "dates" and isinstance(asked, str):
            try:
                return np.datetime64(asked, "ns")
            except ValueError as error:
                raise ValueError(f"`{self.column}` contains dates, but `{asked}` is not a date") from error
        fits = {"text": isinstance(asked, str), "true and false": isinstance(asked, bool), "dates": False}
        if not fits.get(holds, isinstance(asked, int | float) and not isinstance(asked, bool)):
            raise ValueError(f"`{self.column}` contains {holds}, but `{str(asked).lower()}` is not")
        return asked


def _present(values: np.ndarray) -> np.ndarray:
    import numpy as np

    if values.dtype == object:
        return np.fromiter((value is not None for value in values), bool, len(values))
    present: np.ndarray = values == values  # nan and NaT differ from themselves
    return present
