"""Field of dates: columns of dates and times become float32 numbers, such as the normalised time and the month."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field as Key
from pydantic import model_validator

from declarative_train.components.component import ShapeError
from declarative_train.components.data import BadValueError, Column, NoStatisticsError, Tally
from declarative_train.components.fields.columns import Columns, FieldOfColumns, first_bad_row, same_shape
from declarative_train.core.names import check_unique_names
from declarative_train.core.tensor_spec import TensorSpec

if TYPE_CHECKING:
    import numpy as np

Part = Literal["time", "month", "day", "yearday", "weekday", "hour"]
_PERIODS: dict[str, tuple[float, float]] = {  # first value and length of each cycle
    "month": (1, 12),
    "day": (1, 31),
    "yearday": (1, 366),
    "weekday": (0, 7),
    "hour": (0, 24),
}
_MICROSECONDS = {"days": 86400e6, "seconds": 1e6, "milliseconds": 1e3, "microseconds": 1.0, "nanoseconds": 1e-3}
_DAY = 86_400e6  # microseconds
_LONGEST = 62_135_596_800e6  # microseconds from the year 1 to 1970


class DateField(FieldOfColumns):
    """Dates and times as float32 numbers: the time, normalised, and its position in cycles such as the year and the
    week.

    A column holds dates, texts, or numbers that count from 1970. Times with an offset become UTC. A tensor has the
    numbers of all `parts` of the first column, then those of the next column.
    """

    meaning: ClassVar[tuple[str, ...]] = ("parts", "cycles", "format")
    takes_dates: ClassVar[bool] = True
    keys_tell_all: ClassVar[bool] = True

    type: Literal["date"] = "date"
    column: str | None = None
    """One column: shape (N,) per row, N numbers for its parts."""
    columns: Columns | None = None
    """Several columns, or a glob (in the order of the file): shape (C x N,) per row."""
    parts: Annotated[tuple[Part, ...], Key(min_length=1)] = ("time", "yearday", "weekday")
    """Parts of a date. `time`: normalised to mean 0 and standard deviation 1 over the training rows, so that later
    dates are larger. `month`, `day` (of the month), `yearday` (day of the year), `weekday`, `hour` (with minutes as
    fractions): places in a cycle."""
    cycles: bool = True
    """True: a part other than `time` is two numbers, the sine and cosine of its angle, so that December is next to
    January. False: one number, from -1 (January, the first day, Monday, midnight) to 1."""
    format: Annotated[str, Key(min_length=1)] | None = None
    """Format of texts, with the codes of Python's strptime, such as `"%d.%m.%Y %H:%M"`; left out: ISO 8601, as in
    2026-11-26 or 2026-11-26T20:30:00. Of numbers: `days`, `seconds`, `milliseconds`, `microseconds` or `nanoseconds`
    since 1970, or `"%Y"` for years and `"%Y%m%d"` for dates such as 20261126."""
    missing: Literal["error", "zero"] = "error"
    """`error`: a missing date is an error; `zero`: all its numbers are 0, the mean time and the centre of each
    cycle."""
    exclude: Columns | None = None
    """Columns, by name or glob, that a glob of `columns` matches but that are left out."""
    rows: str | int | None = None
    """Rows of a window to use: a slice (`":168"`, `"1:"`), or one row; left out: all."""

    @model_validator(mode="after")
    def _agrees(self) -> DateField:
        check_unique_names(self.parts)
        if self.format is not None and self.format not in _MICROSECONDS and "%" not in self.format:
            counted = ", ".join(_MICROSECONDS)
            raise ValueError(f"`format: {self.format}` has no code such as `%Y`; for counts since 1970 it is {counted}")
        return self

    def needs_value(self, column: Column) -> bool:
        return self.missing == "error"

    def check(self, columns: Sequence[Column]) -> ShapeError | None:
        for column in columns:
            is_number = column.dtype.startswith(("int", "uint", "float"))
            if not (is_number or column.dtype == "object" or column.dtype.startswith("datetime")):
                message = f"`{column.name}` holds {column.dtype}, and a date is a date, a text or a number"
                return ShapeError(message, field=self._key)
            if column.shape:
                message = f"`{column.name}` holds {column.shape} values a row, but a date is a single value"
                return ShapeError(message, field=self._key)
            if is_number and self.format is None:
                message = f"`{column.name}` holds numbers, and nothing says which dates they are"
                hint = '`format: seconds` if they count seconds since 1970, `format: "%Y"` for years'
                return ShapeError(message, field=self._key, help=hint)
        return same_shape(columns, self._key)

    def tally(self, columns: Sequence[Column]) -> Tally | None:
        return _TimeTally(self, columns) if "time" in self.parts else None

    @property
    def _width(self) -> int:
        return sum(1 if part == "time" or not self.cycles else 2 for part in self.parts)

    def row_spec(self, columns: Sequence[Column], statistics: Mapping[str, object]) -> TensorSpec:
        return TensorSpec((len(columns) * self._width,))

    def convert(
        self, values: Sequence[np.ndarray], columns: Sequence[Column], statistics: Mapping[str, object]
    ) -> np.ndarray:
        import numpy as np

        spec = self.row_spec(columns, statistics)
        made = np.empty((len(values[0]), *spec.shape), np.float32)
        for place, (column, array) in enumerate(zip(columns, values, strict=True)):
            times = self.read_times(column, array)
            lacks = np.isnat(times)
            if lacks.any() and self.missing == "error":
                message = f"`{column.name}` has no date"
                raise BadValueError("missing", column.name, message, row=first_bad_row(lacks), help="`missing: zero`")
            moments = np.where(lacks, np.datetime64(0, "us"), times)
            numbers = [number for part in self.parts for number in self._numbers(part, moments, statistics, place)]
            block = np.stack(numbers, axis=1)
            block[lacks] = 0.0
            made[:, place * self._width : (place + 1) * self._width] = block
        return made

    def _numbers(
        self, part: Part, times: np.ndarray, statistics: Mapping[str, Any], place: int
    ) -> Iterable[np.ndarray]:
        import numpy as np

        if part == "time":
            days = times.astype(np.int64) / _DAY
            return [(days - statistics["subtract"][place]) / statistics["divide"][place]]
        first, period = _PERIODS[part]
        turn = (read_part(part, times) - first) / period
        if self.cycles:
            return [np.sin(2 * np.pi * turn), np.cos(2 * np.pi * turn)]
        return [2 * turn * period / (period - 1) - 1 if part != "hour" else 2 * turn - 1]

    def read_times(self, column: Column, values: np.ndarray) -> np.ndarray:
        """Return the values of a column as datetime64[us], NaT if missing. Raises BadValueError for a value that is not
        a date."""
        import numpy as np

        if values.dtype.kind == "M":
            return values.astype("datetime64[us]")
        if self.format in _MICROSECONDS:
            return self._count_from_1970(column, self._read_counts(column, values))
        parse = _parser(self.format)
        known: dict[Any, np.datetime64] = {}
        found = np.empty(len(values), "datetime64[us]")
        for row, value in enumerate(values.tolist()):
            if value not in known:
                try:
                    known[value] = np.datetime64(parse(value), "us")
                except (ValueError, TypeError, OverflowError):
                    raise self._not_a_date(column, value, row) from None
            found[row] = known[value]
        return found

    def _read_counts(self, column: Column, values: np.ndarray) -> np.ndarray:
        """Return `values`, which count seconds or another unit since 1970, as an array of numbers. Text, from a csv
        file of new rows, is parsed; a missing value becomes nan. Raises BadValueError."""
        import numpy as np

        if values.dtype != object:
            return values
        found = np.full(len(values), np.nan)
        for row, value in enumerate(values.tolist()):
            try:
                found[row] = np.nan if value is None else float(value)
            except ValueError:
                raise self._not_a_date(column, value, row) from None
        return found

    def _count_from_1970(self, column: Column, values: np.ndarray) -> np.ndarray:
        import numpy as np

        lacks = values != values
        scale = _MICROSECONDS[self.format or ""]
        micros = np.where(lacks, 0, values).astype(np.float64) * scale
        bad = ~(np.abs(micros) < _LONGEST)
        if bad.any():
            row = first_bad_row(bad)
            raise self._not_a_date(column, values[row], row)
        is_exact = values.dtype.kind in "iu" and scale >= 1
        whole = values.astype(np.int64) * int(scale) if is_exact else micros.astype(np.int64)
        return np.where(lacks, np.datetime64("NaT"), whole.astype("datetime64[us]"))

    def _not_a_date(self, column: Column, value: object, row: int) -> BadValueError:
        wanted = "ISO 8601 (2026-11-26)" if self.format is None else f"`{self.format}`"
        shown = f"{value:g}" if isinstance(value, float) else value
        hint = None if self.format is not None else 'name its format: `format: "%d.%m.%Y"`'
        message = f"`{column.name}` is `{shown}`, which is not a date in the format {wanted}"
        return BadValueError("outside", column.name, message, row=row, help=hint, key="format")


def _parser(format: str | None) -> Callable[[Any], Any]:
    """Return a function (value) -> datetime without time zone, or None for a missing value. A time with an offset is
    converted to UTC. `format`: the format of texts, as for `strptime`; None: ISO 8601."""

    def parse(value: Any) -> datetime.datetime | None:
        if value is None or value != value or (isinstance(value, str) and not value.strip()):
            return None
        text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()
        found = datetime.datetime.fromisoformat(text) if format is None else datetime.datetime.strptime(text, format)
        return found if found.tzinfo is None else found.astimezone(datetime.UTC).replace(tzinfo=None)

    return parse


def read_part(part: str, times: np.ndarray) -> np.ndarray:
    """Return one part of datetime64 values as numbers. `part`: month (1 to 12), day (1 to 31), yearday (1 to 366),
    weekday (0, Monday, to 6) or hour (0 to 24 with fractions)."""
    import numpy as np

    days = times.astype("datetime64[D]")
    found: np.ndarray
    if part == "month":
        found = times.astype("datetime64[M]").astype(np.int64) % 12 + 1
    elif part == "day":
        found = (days - times.astype("datetime64[M]").astype("datetime64[D]")).astype(np.int64) + 1
    elif part == "yearday":
        found = (days - times.astype("datetime64[Y]").astype("datetime64[D]")).astype(np.int64) + 1
    elif part == "weekday":
        found = (days.astype(np.int64) + 3) % 7
    else:
        found = (times - days).astype("timedelta64[us]").astype(np.int64) / 3600e6
    return found


class _TimeTally(Tally):
    """Tally of the mean and standard deviation of the times in each column, in days since 1970. Results of chunks of
    rows are combined with the formula of Chan, Golub and LeVeque (1979), which is numerically stable."""

    def __init__(self, field: DateField, columns: Sequence[Column]) -> None:
        self._field = field
        self._columns = columns
        self._moments = [(0, 0.0, 0.0)] * len(columns)  # count, mean, sum of squared deviations

    def add(self, values: Sequence[np.ndarray]) -> None:
        import numpy as np

        for place, (column, array) in enumerate(zip(self._columns, values, strict=True)):
            times = self._field.read_times(column, array)
            days = times[~np.isnat(times)].astype(np.int64) / _DAY
            if not len(days):
                continue
            count, mean, squares = self._moments[place]
            total, apart = count + len(days), float(days.mean()) - mean
            squares += float(((days - days.mean()) ** 2).sum()) + apart**2 * count * len(days) / total
            self._moments[place] = (total, mean + apart * len(days) / total, squares)

    def result(self) -> dict[str, object]:
        for column, (count, _, _) in zip(self._columns, self._moments, strict=True):
            if not count:
                raise NoStatisticsError(column.name, "has no date in the training rows", help="leave the column out")
        return {
            "subtract": [mean for _, mean, _ in self._moments],
            "divide": [(squares / count) ** 0.5 or 1.0 for count, _, squares in self._moments],
        }
