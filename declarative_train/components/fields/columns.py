"""Code that fields share: finding columns by name, selecting rows of a window, and stacking columns to one array."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Self

from pydantic import model_validator

from declarative_train.components.component import ShapeError
from declarative_train.components.data import BadValueError, Column, Field
from declarative_train.core.names import check_unique_names
from declarative_train.core.tensor_spec import Interval

if TYPE_CHECKING:
    import numpy as np

Columns = str | tuple[str, ...]

_SLICE = re.compile(r"(-?\d+)?:(-?\d+)?(?::(\d+))?")
_EXACT = 2**53
_EXACT_IN_FLOAT32 = 2**24
_WIDE = frozenset({"int32", "int64", "uint32", "uint64"})


class FieldOfColumns(Field):
    """Base class of fields that are made from one `column` or from several `columns`."""

    if TYPE_CHECKING:  # declared by each subclass, in the order of its documentation
        column: str | None
        columns: Columns | None
        exclude: Columns | None
        rows: str | int | None

    @model_validator(mode="after")
    def _names_columns(self) -> Self:
        check_one_of(self.column, self.columns, self.exclude)
        parse_cut(self.rows)
        return self

    @property
    def wanted(self) -> tuple[str, ...]:
        return (self.column,) if self.column is not None else _as_tuple(self.columns)

    @property
    def unwanted(self) -> tuple[str, ...]:
        return _as_tuple(self.exclude)

    @property
    def cut(self) -> slice | int | None:
        return parse_cut(self.rows)

    @property
    def _key(self) -> str:
        return "columns" if self.column is None else "column"


def _as_tuple(names: Columns | None) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names or ()


def is_glob(name: str) -> bool:
    return any(sign in name for sign in "*?[")


def match_columns(
    wanted: Iterable[str], names: Sequence[str], unwanted: Iterable[str] = ()
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (columns, missed). `columns`: the names in `names` that `wanted` selects, without those that `unwanted`
    selects; each occurs once. The matches of a glob keep the order of `names`. `missed`: the names and globs in
    `wanted` and `unwanted` that match nothing."""
    found: dict[str, None] = {}
    missed = []
    for name in wanted:
        matched = _match(name, names)
        found |= dict.fromkeys(matched)
        if not matched:
            missed.append(name)
    for name in unwanted:
        matched = _match(name, names)
        found = {each: None for each in found if each not in matched}
        if not matched:
            missed.append(name)
    return tuple(found), tuple(missed)


def _match(name: str, names: Sequence[str]) -> list[str]:
    return [name] if name in names else [each for each in names if is_glob(name) and fnmatchcase(each, name)]


def check_one_of(column: str | None, columns: Columns | None, exclude: Columns | None = None) -> None:
    """Check the keys `column`, `columns` and `exclude` of a field. Exactly one of `column` and `columns` must be given,
    and `exclude` only with `columns`. `column` must not be a glob, `columns` not empty, and neither list may have
    repeats. Raises ValueError."""
    if exclude is not None and columns is None:
        raise ValueError("`exclude` takes columns out of `columns`, which is not given")
    if isinstance(exclude, tuple):
        check_unique_names(exclude)
    if (column is None) == (columns is None):
        both = column is not None
        raise ValueError("give `column` or `columns`, not both" if both else "name its `column` or `columns`")
    if column is not None and is_glob(column):
        raise ValueError(f'`column` names one column; write `columns: "{column}"` for all that match')
    if columns is not None and not columns:
        raise ValueError("`columns` names no column")
    if isinstance(columns, tuple):
        check_unique_names(columns)


def parse_cut(rows: str | int | None) -> slice | int | None:
    """Return the rows of a window that `rows` selects: a text such as `":168"`, `"1:"` or `"::2"`, or the index of one
    row. None means all rows. Raises ValueError."""
    if rows is None or isinstance(rows, int):
        return rows
    found = _SLICE.fullmatch(rows.replace(" ", ""))
    if found is None or found[3] == "0":
        raise ValueError(f"`rows` is `{rows}`; it takes a slice such as `:168`, `168:`, `1:-1`, or one row's number")
    return slice(*(None if part is None else int(part) for part in found.groups()))


def same_shape(columns: Sequence[Column], key: str) -> ShapeError | None:
    first = columns[0]
    other = next((column for column in columns if column.shape != first.shape), None)
    if other is None:
        return None
    return ShapeError(
        f"`{first.name}` holds {format_shape(first.shape)} in a row and `{other.name}` {format_shape(other.shape)}: "
        "they do not make one tensor",
        field=key,
        help="make a field of each",
    )


def format_shape(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})" if shape else "one value"


def stack_columns(values: Sequence[np.ndarray], single: bool, out: np.ndarray | None = None) -> np.ndarray:
    """Return the values (N, ...) of one column if `single`, or the values of several columns stacked to (N, C, ...).
    `out`: array for the result of several columns, used if all of them have its dtype."""
    import numpy as np

    if single:
        return values[0]
    if out is None or any(each.dtype != out.dtype for each in values):
        return np.stack(values, axis=1)
    return np.stack(values, axis=1, out=out.reshape(len(out), len(values), *values[0].shape[1:]))


def intervals_by_column(shape: tuple[int, ...], intervals: Sequence[Interval]) -> Sequence[Interval]:
    """Return the value ranges of a tensor that is made from columns. If a row has one entry per column, return
    `intervals`, the range of each column. Otherwise return a single interval that contains all of them. `shape`: shape
    of one row of the tensor."""
    if shape == (len(intervals),):
        return intervals
    return ((min(low for low, _ in intervals), max(high for _, high in intervals)),)


def has_finite_sum(values: np.ndarray) -> bool:
    """Return whether the sum of the values is finite, which takes half the time of testing each value. If it is True,
    every value is finite. False proves nothing, because a sum of large finite numbers can overflow."""
    import numpy as np

    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(values.sum()))


def first_bad_row(bad: np.ndarray) -> int:
    """Return the index of the first row (dimension 0) in which an element of `bad` is true."""
    import numpy as np

    return int(np.flatnonzero(bad.reshape(len(bad), -1).any(axis=1))[0])


def first_bad_value(values: np.ndarray, bad: np.ndarray) -> tuple[int, Any]:
    """Return the row of the first value at which `bad` is true, and the value."""
    import numpy as np

    place = int(np.flatnonzero(bad.ravel())[0])
    return place // (bad.size // len(bad)), values.ravel()[place]


def to_integers(column: Column, values: np.ndarray, key: str | None = None) -> np.ndarray:
    """Return a column of whole numbers as int64. No value may be missing. `key`: the key of the field that requires
    whole numbers, for the error. Raises BadValueError for a fraction, and for a number that is too large to be
    exact."""
    import numpy as np

    if values.dtype.kind in "iub":
        if values.dtype == np.uint64 and (bad := values > np.uint64(np.iinfo(np.int64).max)).any():
            row, found = first_bad_value(values, bad)
            message = f"`{column.name}` is {found}, beyond int64"
            raise BadValueError("outside", column.name, message, row=row, key=key)
        return values.astype(np.int64, copy=False)
    bad = ~(np.floor(values) == values) | (np.abs(values) > _EXACT)
    if bad.any():
        row, found = first_bad_value(values, bad)
        if np.isfinite(found) and np.floor(found) == found:
            message = f"`{column.name}` is {found:.0f} as float64, which is not exact for whole numbers beyond 2^53"
            advice = "write ids that long as text (`id-1234`), or renumber them"
            raise BadValueError("outside", column.name, message, row=row, help=advice, key=key)
        message = f"`{column.name}` is {found:g}, which is not a whole number"
        raise BadValueError("fraction", column.name, message, row=row, key=key)
    return values.astype(np.int64)


def check_rounding(columns: Sequence[Column], values: Sequence[np.ndarray], made: np.ndarray) -> None:
    """Raise BadValueError if a whole number of an integer column became another number, because a float dtype cannot
    represent it. `values`: the numbers before the conversion, one array per column. `made`: the numbers after the
    conversion."""
    import numpy as np

    wide = [place for place, column in enumerate(columns) if column.dtype in _WIDE]
    exact = _EXACT_IN_FLOAT32 if made.dtype == np.float32 else _EXACT
    if not wide or not made.size or max(made.max(), -made.min()) < exact:
        return
    for place in wide:
        raw = values[place]
        with np.errstate(invalid="ignore"):  # casts fail at the ends of int64, and for missing values
            bad = raw.astype(made.dtype).astype(raw.dtype) != raw
        if raw.dtype.kind == "f":  # a column with missing values, which may be filled with fractions
            bad &= np.floor(raw) == raw
        if bad.any():
            row, found = first_bad_value(raw, bad)
            name = columns[place].name
            message = f"`{name}` is {int(found)}, and {made.dtype} would make it {int(made.dtype.type(found))}"
            advice = (
                "`dtype: int64` for an id; for an amount `normalize: standard`, or `dtype: float32` to let it round"
            )
            raise BadValueError("outside", name, message, row=row, help=advice)
