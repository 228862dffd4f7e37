"""Tensor field: a tensor from numeric columns. Missing values are filled, then values are scaled and normalised."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field as Key
from pydantic import model_validator

from declarative_train.components.component import ShapeError
from declarative_train.components.data import (
    LISTS,
    MESSAGES,
    BadValueError,
    Column,
    NoStatisticsError,
    Preparation,
    Tally,
    Unit,
)
from declarative_train.components.fields.columns import (
    Columns,
    FieldOfColumns,
    check_rounding,
    first_bad_row,
    first_bad_value,
    format_shape,
    has_finite_sum,
    intervals_by_column,
    is_glob,
    same_shape,
    stack_columns,
    to_integers,
)
from declarative_train.core.amounts import format_count
from declarative_train.core.tensor_spec import FLOATING, DType, TensorSpec

if TYPE_CHECKING:
    import numpy as np

_NOT_NUMERIC: dict[str, tuple[str, str | None]] = {  # dtype -> what the column holds, and a hint which type takes it
    "datetime": ("dates", "for the time, the month or the weekday, use `type: date`"),
    "bytes": ("files", "for pictures, use `type: image`"),
    MESSAGES: ("lists of messages", "for tokens of them, use `type: tokens`"),
    LISTS: ("lists of lists or of texts", "for boxes of pictures, use `type: boxes`"),
    "object": ("text", "for a word out of a list, use `type: category`"),
}


class TensorField(FieldOfColumns):
    """Numbers, unchanged or scaled and normalised."""

    meaning: ClassVar[tuple[str, ...]] = ("normalize", "scale")
    keys_tell_all: ClassVar[bool] = True

    type: Literal["tensor"] = "tensor"
    column: str | None = None
    """One column: shape () per row, or the shape that its values have in the source."""
    columns: Columns | None = None
    """Several columns, or a glob (`"p*"`, in the order of the file): shape (C,) per row, (1,) for a list of one."""
    dtype: DType | None = None
    """Data type. Left out: int64 for columns whose range the source knows (tokens), else float32, or float64 in a run
    in fp64. If it is left out, a whole number that would be rounded is an error (beyond 2^24 in float32, 2^53 in
    float64), except where values are scaled or normalised."""
    scale: float | None = None
    """Factor that values are multiplied by, after missing values are filled."""
    normalize: Literal["standard", "minmax"] | None = None
    """Normalisation after scaling. standard: mean 0 and standard deviation 1; minmax: from 0 to 1. The statistics are
    those of the training rows, for each column (and each element of a column of arrays) separately, without missing
    values. A column that never changes becomes 0. The values that fill missing ones are normalised too."""
    missing: Literal["error", "mean", "zero"] | float = "error"
    """Value that replaces a missing one: `mean` (of the training rows), `zero`, or a number; `error`: a missing value
    is an error."""
    shape: Annotated[tuple[Annotated[int, Key(ge=1)], ...], Key(min_length=1)] | None = None
    """Shape that the values of a row are reshaped to."""
    exclude: Columns | None = None
    """Columns, by name or glob, that a glob of `columns` matches but that are left out: the target, an id."""
    rows: str | int | None = None
    """Rows of a window to use: a slice (`":168"`, `"1:"`), or one row; left out: all."""

    @model_validator(mode="after")
    def _agrees(self) -> TensorField:
        if self.scale == 0:
            raise ValueError("`scale: 0` makes every value 0")
        if isinstance(self.missing, float) and not math.isfinite(self.missing):
            raise ValueError(f"`missing: {self.missing}` is missing itself; `mean`, `zero` or a number is wanted")
        if self.dtype is not None and self.dtype not in FLOATING:
            for key, value in (("scale", self.scale), ("normalize", self.normalize)):
                if value is not None:
                    raise ValueError(f"`{key}` gives fractions, and `dtype: {self.dtype}` holds none")
            if self.missing == "mean":
                raise ValueError(f"`missing: mean` gives fractions, and `dtype: {self.dtype}` holds none")
            if isinstance(self.missing, float) and not self.missing.is_integer():
                raise ValueError(f"`missing: {self.missing}` is not a whole number, as `dtype: {self.dtype}` asks for")
        return self

    def needs_value(self, column: Column) -> bool:
        return self.missing == "error"

    def check(self, columns: Sequence[Column]) -> ShapeError | None:
        for column in columns:
            kind = "datetime" if column.dtype.startswith("datetime") else column.dtype
            if kind in _NOT_NUMERIC:
                holds, advice = _NOT_NUMERIC[kind]
                if any(map(is_glob, self.wanted)):  # the glob may match more columns than the user meant
                    others = [each.name for each in columns if each.dtype == column.dtype]
                    them = "it" if len(others) == 1 else "them"
                    left_out = f"`exclude: [{', '.join([*self.unwanted, *others])}]` leaves {them} out"
                    advice = left_out if advice is None else f"{left_out}; {advice}"
                message = f"`{column.name}` holds {holds}, and a tensor holds numbers"
                return ShapeError(message, field=self._key, help=advice)
        if (shape_error := same_shape(columns, self._key)) is not None:
            return shape_error
        found = TensorSpec(self._row_shape(columns))
        if self.shape is not None and TensorSpec(self.shape).num_elements != found.num_elements:
            size = TensorSpec(self.shape).num_elements
            return ShapeError(
                f"a row has {format_count(found.num_elements, 'value')} and shape {format_shape(self.shape)} {size}",
                field="shape",
            )
        return None

    def _row_shape(self, columns: Sequence[Column]) -> tuple[int, ...]:
        return columns[0].shape if self.column is not None else (len(columns), *columns[0].shape)

    def row_spec(self, columns: Sequence[Column], statistics: Mapping[str, object]) -> TensorSpec:
        ranges = [2 if column.dtype == "bool" else column.num_values for column in columns]
        dtype = self.dtype or ("int64" if self._keeps_ranges(columns) else "float32")
        spec = TensorSpec(self.shape or self._row_shape(columns), dtype)
        known = [(0, size - 1) for size in ranges if size is not None]
        if dtype in FLOATING or dtype == "bool" or self.missing != "error" or len(known) < len(ranges):
            return spec
        return spec.between(intervals_by_column(spec.shape, known))

    def _keeps_ranges(self, columns: Sequence[Column]) -> bool:
        changed = (self.scale, self.normalize) != (None, None) or self.missing != "error"
        return not changed and all(column.num_values is not None for column in columns)

    def with_floats(self, dtype: DType, columns: Sequence[Column]) -> TensorField:
        if self.dtype is not None or dtype == "float32" or self._keeps_ranges(columns):
            return self
        return self.model_copy(update={"dtype": dtype})

    def tally(self, columns: Sequence[Column]) -> Tally | None:
        if self.normalize is not None or self.missing == "mean":
            return _MomentsTally(self, columns)
        spec = self.row_spec(columns, {})
        if spec.dtype not in FLOATING and spec.num_values is None:
            return _RangeTally(columns)
        return None

    def unit(self, statistics: Mapping[str, object]) -> Unit | None:
        if self.scale is None and self.normalize is None:
            return None
        scale = 1.0 if self.scale is None else self.scale
        if not scale:
            return None  # every value is 0, so the scaling cannot be undone
        subtract: Any = statistics.get("subtract", [0.0])
        divide: Any = statistics.get("divide", [1.0])
        if len(set(subtract)) == 1 and len(set(divide)) == 1:
            subtract, divide = subtract[:1], divide[:1]
        return Unit(tuple(each / scale for each in divide), tuple(each / scale for each in subtract))

    def preparation(self, statistics: Mapping[str, object]) -> Preparation:
        means: Any = statistics.get("fill", [])
        fills = {"error": None, "zero": (0.0,), "mean": tuple(each for column in means for each in column)}
        fill = fills[self.missing] if isinstance(self.missing, str) else (self.missing,)
        if self.normalize is None:
            return Preparation(fill, self.scale)
        subtract: Any = statistics["subtract"]
        divide: Any = statistics["divide"]
        return Preparation(fill, self.scale, tuple(subtract), tuple(divide))

    def convert(
        self, values: Sequence[np.ndarray], columns: Sequence[Column], statistics: Mapping[str, object]
    ) -> np.ndarray:
        return self._convert(values, columns, statistics, None)

    def convert_into(
        self, out: np.ndarray, values: Sequence[np.ndarray], columns: Sequence[Column], statistics: Mapping[str, object]
    ) -> None:
        import numpy as np

        made = self._convert(values, columns, statistics, out)
        if not np.may_share_memory(made, out):
            out[...] = made

    def _convert(
        self,
        values: Sequence[np.ndarray],
        columns: Sequence[Column],
        statistics: Mapping[str, object],
        out: np.ndarray | None,
    ) -> np.ndarray:
        """Return the values of the field for these rows as an array. `out`: array whose memory the result may use;
        None: the result has memory of its own."""
        import numpy as np

        spec = self.row_spec(columns, statistics)
        fill: Any = statistics.get("fill", [None] * len(columns))
        present = [
            self._fill(column, array, each, spec) for column, array, each in zip(columns, values, fill, strict=True)
        ]
        if spec.dtype in FLOATING:
            raw = stack_columns(present, self.column is not None, out)
            try:
                with np.errstate(over="raise"):
                    made = self._floating(raw, spec, statistics)
            except FloatingPointError:
                raise self._overflow_error(raw, columns, spec.dtype) from None
            if self.dtype in (None, "float64") and self.scale is None and self.normalize is None:
                check_rounding(columns, present, made)
        elif spec.dtype == "bool":
            made = stack_columns(present, self.column is not None) != 0
        elif out is not None and len(present) == 1 and np.can_cast(present[0].dtype, out.dtype):
            out[...] = present[0].reshape(out.shape)  # tokens of a narrow dtype: widen them without an extra copy
            return out
        else:
            whole = [_cast_integers(column, array, spec.dtype) for column, array in zip(columns, present, strict=True)]
            made = stack_columns(whole, self.column is not None)
        return np.ascontiguousarray(made.reshape(len(made), *spec.shape))

    def _fill(self, column: Column, values: np.ndarray, mean: list[float] | None, spec: TensorSpec) -> np.ndarray:
        import numpy as np

        if values.dtype.kind != "f" or has_finite_sum(values):
            return values
        odd = ~np.isfinite(values)
        if not odd.any():
            return values
        lacks = np.isnan(values)
        if (odd & ~lacks).any() and spec.dtype in FLOATING:  # `to_integers` reports it for whole numbers
            row, value = first_bad_value(values, odd & ~lacks)
            advice = "write a finite number there, or nothing and `missing: mean`"
            raise BadValueError("outside", column.name, f"`{column.name}` is {value}", row=row, help=advice)
        if not lacks.any():
            return values
        if self.missing == "error":
            found = (
                f"misses {_count(lacks)}" if not lacks.all() else f"has no value in {format_count(len(lacks), 'row')}"
            )
            hint = (
                "for an input `missing: mean`, `missing: zero` or a number; for a target `on_bad_row: skip` in `data`"
            )
            raise BadValueError("missing", column.name, f"`{column.name}` {found}", row=first_bad_row(lacks), help=hint)
        if self.missing == "mean":
            return np.where(lacks, np.reshape(np.asarray(mean, np.float64), column.shape), values)
        return np.where(lacks, 0.0 if self.missing == "zero" else self.missing, values)

    def _floating(self, values: np.ndarray, spec: TensorSpec, statistics: Mapping[str, object]) -> np.ndarray:
        import numpy as np

        target = "float32" if spec.dtype == "bfloat16" else spec.dtype
        if self.scale is None and self.normalize is None:
            return values.astype(target, copy=False)
        work = values.astype(np.float64)
        if self.scale is not None:
            work *= self.scale
        if self.normalize is not None:
            shape = values.shape[1:]
            work -= np.reshape(np.asarray(statistics["subtract"], np.float64), shape)
            work /= np.reshape(np.asarray(statistics["divide"], np.float64), shape)
        return work.astype(target)

    def _overflow_error(self, values: np.ndarray, columns: Sequence[Column], dtype: str) -> BadValueError:
        """Return the error for values that do not fit into `dtype`. Its message names the largest value."""
        import numpy as np

        size = np.abs(values.astype(np.float64)).reshape(len(values), -1)
        row, place = np.unravel_index(int(np.nanargmax(size)), size.shape)
        column = columns[0] if self.column is not None else columns[int(place) * len(columns) // size.shape[1]]
        scaled = "" if self.scale is None else f", times {self.scale:g}"
        message = f"`{column.name}` is {values.reshape(size.shape)[row, place]:g}{scaled}: more than {dtype} can hold"
        key = "dtype" if self.scale is None else "scale"
        return BadValueError("outside", column.name, message, row=int(row), key=key)


def _count(lacks: np.ndarray) -> str:
    count = int(lacks.sum())
    return "a value" if count == 1 else f"{count:,} values"


def _cast_integers(column: Column, values: np.ndarray, dtype: str) -> np.ndarray:
    import numpy as np

    if np.can_cast(values.dtype, dtype):
        return values.astype(dtype, copy=False)
    whole = to_integers(column, values, key="dtype")
    info = np.iinfo(dtype)
    bad = (whole < info.min) | (whole > info.max)
    if bad.any():
        row, found = first_bad_value(whole, bad)
        message = f"`{column.name}` is {found}, and {dtype} goes from {info.min} to {info.max}"
        raise BadValueError("outside", column.name, message, row=row, key="dtype")
    return whole.astype(dtype, copy=False)


class _MomentsTally(Tally):
    """Accumulator of count, mean, sum of squared deviations, minimum and maximum of each element, without missing
    values. Chunks are combined by the update of Chan, Golub and LeVeque (1979), which is numerically stable."""

    def __init__(self, field: TensorField, columns: Sequence[Column]) -> None:
        self._field = field
        self._columns = columns
        self._count: Any = 0
        self._mean: Any = 0.0
        self._squares: Any = 0.0
        self._least: Any = float("inf")
        self._greatest: Any = float("-inf")

    def add(self, values: Sequence[np.ndarray]) -> None:
        import numpy as np

        if not len(values[0]):
            return
        chunk = stack_columns(values, self._field.column is not None).astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):  # `result` reports infinite values
            self._join(chunk)

    def _join(self, chunk: np.ndarray) -> None:
        import numpy as np

        present = ~np.isnan(chunk)
        count = present.sum(axis=0)
        clean = np.where(present, chunk, 0.0)
        mean = clean.sum(axis=0) / np.maximum(count, 1)
        squares = np.where(present, (chunk - mean) ** 2, 0.0).sum(axis=0)
        total = self._count + count
        apart = mean - self._mean
        share = count / np.maximum(total, 1)
        self._squares = self._squares + squares + apart**2 * self._count * share
        self._mean = self._mean + apart * share
        self._count = total
        self._least = np.minimum(self._least, np.where(present, chunk, np.inf).min(axis=0))
        self._greatest = np.maximum(self._greatest, np.where(present, chunk, -np.inf).max(axis=0))

    def result(self) -> dict[str, object]:
        import numpy as np

        empty = np.atleast_1d(np.asarray(self._count) == 0)
        if empty.any():
            fix = "leave the column out" if self._field.missing is None else "`missing: zero`, or leave the column out"
            raise NoStatisticsError(self._name_of(empty), "has no value in the training rows", help=fix)
        infinite = np.atleast_1d(~np.isfinite(self._mean))
        if infinite.any():
            value = next((end for end in self._range_of_first(infinite) if not np.isfinite(end)), None)
            message = "holds infinite values in the training rows"
            fix = "write a number there, or nothing and `missing: mean`"
            raise NoStatisticsError(self._name_of(infinite), message, help=fix, value=value)
        with np.errstate(over="ignore"):
            apart = np.atleast_1d(~np.isfinite(self._squares + (self._greatest - self._least)))
        if apart.any() and self._field.normalize is not None:
            least, greatest = self._range_of_first(apart)
            message = f"goes from {least:g} to {greatest:g} in the training rows, too far to be normalised"
            value, fix = max(least, greatest, key=abs), "correct that row, or remove `normalize`"
            raise NoStatisticsError(self._name_of(apart), message, help=fix, value=value)
        found: dict[str, object] = {}
        if self._field.missing == "mean":
            found["fill"] = np.reshape(self._mean, (len(self._columns), -1)).tolist()
        scale = 1.0 if self._field.scale is None else self._field.scale
        if self._field.normalize is not None:
            ends = np.stack([self._least * scale, self._greatest * scale])
            if self._field.normalize == "standard":
                subtract = self._mean * scale
                divide = np.sqrt(self._squares / self._count) * abs(scale)
            else:
                subtract = ends.min(axis=0)
                divide = ends.max(axis=0) - subtract
            divide = np.where(ends[0] == ends[1], 1.0, divide)
            found["subtract"] = np.ravel(np.where(ends[0] == ends[1], ends[0], subtract)).tolist()
            found["divide"] = np.ravel(divide).tolist()
        return found

    def _range_of_first(self, bad: np.ndarray) -> tuple[float, float]:
        """Return the least and the greatest value, in the training rows, of the first element for which `bad` is True.
        `bad`: one bool for each element of the field."""
        import numpy as np

        first = np.flatnonzero(bad)[0]
        return float(np.ravel(self._least)[first]), float(np.ravel(self._greatest)[first])

    def _name_of(self, bad: np.ndarray) -> str:
        if self._field.column is not None:
            return self._columns[0].name
        return self._columns[first_bad_row(bad)].name


class _RangeTally(Tally):
    """Accumulator of the least and the greatest value of an integer field, from which the number of classes follows."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._ends: list[int] = []

    def add(self, values: Sequence[np.ndarray]) -> None:
        for array in values:
            clean = array[abs(array) < float("inf")] if array.dtype.kind == "f" else array
            if clean.size:
                self._ends += [int(clean.min()), int(clean.max())]
                self._ends = [min(self._ends), max(self._ends)]

    def result(self) -> dict[str, object]:
        return {"least": self._ends[0], "greatest": self._ends[1]} if self._ends else {}
