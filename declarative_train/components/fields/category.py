"""Category field: class numbers from columns of words or whole numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field as Key
from pydantic import model_validator

from declarative_train.components.component import ShapeError
from declarative_train.components.data import LISTS, MESSAGES, BadValueError, Column, NoStatisticsError, Tally
from declarative_train.components.fields.columns import (
    Columns,
    FieldOfColumns,
    first_bad_row,
    first_bad_value,
    intervals_by_column,
    same_shape,
    stack_columns,
    to_integers,
)
from declarative_train.core.amounts import format_count
from declarative_train.core.tensor_spec import TensorSpec

if TYPE_CHECKING:
    import numpy as np

Classes = Annotated[int, Key(ge=1)]
_MOST = 1_000_000  # values in a vocabulary, since the plan contains it


class CategoryField(FieldOfColumns):
    """Class numbers, int64. Their range is known, so an `embedding` of them needs no `num_embeddings`.

    With `num_classes`, whole numbers in the column are the class numbers. Text, and numbers without `num_classes`, are
    numbered by a vocabulary: the distinct values of the training rows, sorted.
    """

    meaning: ClassVar[tuple[str, ...]] = ("num_classes", "unknown")
    keys_tell_all: ClassVar[bool] = True

    type: Literal["category"] = "category"
    column: str | None = None
    """One column: shape () per row, or the shape that its values have in the source."""
    columns: Columns | None = None
    """Several columns, or a glob (in the order of the file): shape (C,) per row."""
    num_classes: Classes | Annotated[tuple[Classes, ...], Key(min_length=1)] | None = None
    """Number of classes, one number for all columns or one per column. Classes are numbered from 0 to this - 1. Left
    out: the number that the source or the vocabulary gives."""
    unknown: Annotated[int, Key(ge=0)] | None = None
    """Class of values that are missing, out of range or not in the vocabulary; left out: they are an error. The
    vocabulary leaves this number free, and keeps the most frequent values if there are more than `num_classes`."""
    one_hot: bool = False
    """True: a row is float32 (K,), 1 for its class and 0 for the others, instead of a class number. For targets that
    `mixup` or `cutmix` mix."""
    exclude: Columns | None = None
    """Columns, by name or glob, that a glob of `columns` matches but that are left out: the target, an id."""
    rows: str | int | None = None
    """Rows of a window to use: a slice (`":168"`, `"1:"`), or one row; left out: all."""

    @model_validator(mode="after")
    def _agrees(self) -> CategoryField:
        sizes = self.num_classes if isinstance(self.num_classes, tuple) else (self.num_classes,)
        if isinstance(self.num_classes, tuple) and self.column is not None and len(sizes) > 1:
            raise ValueError(f"`num_classes` names {len(sizes)} columns, and there is one")
        least = min((size for size in sizes if size is not None), default=None)
        if self.one_hot and self.column is None:
            raise ValueError("`one_hot` takes one `column`")
        if least is not None and self.unknown is not None and self.unknown >= least:
            raise ValueError(f"`unknown` is class {self.unknown}, and classes go from 0 to {least - 1}")
        return self

    def needs_value(self, column: Column) -> bool:
        return self.unknown is None

    def check(self, columns: Sequence[Column]) -> ShapeError | None:
        dates = next((column for column in columns if column.dtype.startswith("datetime")), None)
        if dates is not None:
            message = f"`{dates.name}` holds dates, and a category is a word or a whole number"
            hint = "for the time, the month or the weekday, use `type: date`"
            return ShapeError(message, field=self._key, help=hint)
        files = next((column for column in columns if column.dtype == "bytes"), None)
        if files is not None:
            return ShapeError(
                f"`{files.name}` holds files, and a category is a word or a whole number", field=self._key
            )
        lists = next((column for column in columns if column.dtype == MESSAGES), None)
        if lists is not None:
            message = f"`{lists.name}` holds lists of messages, and a category is a word or a whole number"
            return ShapeError(message, field=self._key, help="for tokens of them, use `type: tokens`")
        nested = next((column for column in columns if column.dtype == LISTS), None)
        if nested is not None:
            message = f"`{nested.name}` holds lists, and a category is a word or a whole number"
            return ShapeError(message, field=self._key)
        if self.one_hot and columns[0].shape:
            message = f"`{columns[0].name}` holds {columns[0].shape} values a row, and `one_hot` takes one"
            return ShapeError(message, field="one_hot")
        if isinstance(self.num_classes, tuple) and len(self.num_classes) != len(columns):
            return ShapeError(
                f"`num_classes` has {format_count(len(self.num_classes), 'entry')} for "
                f"{format_count(len(columns), 'column')}",
                field="num_classes",
            )
        return same_shape(columns, self._key)

    def _class_limit(self, position: int) -> int | None:
        return self.num_classes[position] if isinstance(self.num_classes, tuple) else self.num_classes

    def _needs_vocabulary(self, position: int, column: Column) -> bool:
        if column.dtype == "object":
            return True
        return self._class_limit(position) is None and column.num_values is None and column.dtype != "bool"

    def _size(self, position: int, column: Column, vocabulary: Sequence[object] | None) -> int:
        asked = self._class_limit(position)
        if asked is not None:
            return asked
        if vocabulary is not None:
            return len(vocabulary) + (self.unknown is not None)
        return 2 if column.dtype == "bool" else column.num_values or 1

    def tally(self, columns: Sequence[Column]) -> Tally | None:
        if any(self._needs_vocabulary(position, column) for position, column in enumerate(columns)):
            return _Vocabularies(self, columns)
        return None

    def row_spec(self, columns: Sequence[Column], statistics: Mapping[str, object]) -> TensorSpec:
        shape = columns[0].shape if self.column is not None else (len(columns), *columns[0].shape)
        vocabularies = _vocabularies(statistics, columns)
        sizes = [
            self._size(position, column, vocabulary)
            for position, (column, vocabulary) in enumerate(zip(columns, vocabularies, strict=True))
        ]
        if self.one_hot:
            return TensorSpec((sizes[0],)).between([(0.0, 1.0)])
        return TensorSpec(shape, "int64").between(intervals_by_column(shape, [(0, size - 1) for size in sizes]))

    def convert(
        self, values: Sequence[np.ndarray], columns: Sequence[Column], statistics: Mapping[str, object]
    ) -> np.ndarray:
        import numpy as np

        made = [
            self._classes(position, column, array, vocabulary)
            for position, (column, array, vocabulary) in enumerate(
                zip(columns, values, _vocabularies(statistics, columns), strict=True)
            )
        ]
        if self.one_hot:
            size = self.row_spec(columns, statistics).shape[0]
            parts: np.ndarray = (made[0][:, None] == np.arange(size)).astype(np.float32)
            return parts
        return np.ascontiguousarray(stack_columns(made, self.column is not None))

    def _classes(
        self, position: int, column: Column, values: np.ndarray, vocabulary: Sequence[Any] | None
    ) -> np.ndarray:
        import numpy as np

        lacks = _find_missing(values)
        if lacks.any() and self.unknown is None:
            message = f"`{column.name}` misses {'a value' if lacks.sum() == 1 else f'{int(lacks.sum()):,} values'}"
            hint = "choose the class of missing values: `unknown: 0`"
            raise BadValueError("missing", column.name, message, row=first_bad_row(lacks), help=hint)
        if vocabulary is not None:
            found = _look_up(values, lacks, vocabulary, self.unknown)
        else:
            whole = values if not lacks.any() else np.where(lacks, -1, values)
            found = to_integers(column, whole)
            size = self._size(position, column, None)
            found = np.where((found < 0) | (found >= size), -1, found)
        outside = found < 0
        if not outside.any():
            return found
        if self.unknown is not None:
            return np.where(outside, self.unknown, found)
        row, value = first_bad_value(values, outside)
        raise self._outside(column, value, row, vocabulary, self._size(position, column, vocabulary))

    def _outside(
        self, column: Column, value: object, row: int, vocabulary: Sequence[object] | None, size: int
    ) -> BadValueError:
        if vocabulary is None:
            text = f"`{column.name}` is {value}, and {size} classes go from 0 to {size - 1}"
            hint = "set num_classes, or give unknown values a class: `unknown: 0`"
            if value == size:  # most often labels that count from 1
                hint = f"set num_classes to {size + 1}; for labels from 1 on remove it: they get numbers from 0"
            return BadValueError("outside", column.name, text, row=row, help=hint, key="num_classes")
        text = f"`{column.name}` is `{value}`, which is in none of the training rows"
        return BadValueError("outside", column.name, text, row=row, help="give unknown values a class: `unknown: 0`")


def _vocabularies(statistics: Mapping[str, object], columns: Sequence[Column]) -> Sequence[Sequence[Any] | None]:
    found: Any = statistics.get("vocabulary")
    return [None] * len(columns) if found is None else found


def _find_missing(values: np.ndarray) -> np.ndarray:
    import numpy as np

    if values.dtype == object:
        lacks = np.fromiter((value is None for value in values.ravel()), bool, values.size)
        return lacks.reshape(values.shape)
    return np.isnan(values) if values.dtype.kind == "f" else np.zeros(values.shape, bool)


def _look_up(values: np.ndarray, lacks: np.ndarray, vocabulary: Sequence[Any], unknown: int | None) -> np.ndarray:
    """Return the class number of each value: its index in the vocabulary; -1 if it is missing or not in the vocabulary.
    `lacks`: true where a value is missing. `unknown`: class number that no value of the vocabulary may get, or None.
    Indices from `unknown` on are increased by one to skip it."""
    import numpy as np

    if values.dtype == object:
        index = {value: position for position, value in enumerate(vocabulary)}
        found = np.fromiter((index.get(value, -1) for value in values.ravel()), np.int64, values.size)
        found = found.reshape(values.shape)
    else:
        known = np.asarray(vocabulary)
        found = np.minimum(np.searchsorted(known, values), max(len(known) - 1, 0))
        found = np.where(~lacks & (known[found] == values), found, -1) if len(known) else np.full(values.shape, -1)
    return found if unknown is None else np.where(found >= unknown, found + 1, found)


class _Vocabularies(Tally):
    """Accumulator of the distinct values of each column that needs a vocabulary."""

    def __init__(self, field: CategoryField, columns: Sequence[Column]) -> None:
        self._field = field
        self._columns = columns
        self._counts: list[Counter[Any]] = [Counter() for _ in columns]

    def add(self, values: Sequence[np.ndarray]) -> None:
        import numpy as np

        for position, (column, array) in enumerate(zip(self._columns, values, strict=True)):
            if not self._field._needs_vocabulary(position, column):
                continue
            lacks = _find_missing(array)
            if array.dtype == object:
                self._counts[position].update(array[~lacks].tolist())
            else:
                whole = to_integers(column, np.where(lacks, 0, array) if lacks.any() else array)
                found, counts = np.unique(whole[~lacks], return_counts=True)
                self._counts[position].update(dict(zip(found.tolist(), counts.tolist(), strict=True)))
            if len(self._counts[position]) > _MOST and self._field._class_limit(position) is None:
                message, fix = f"has more than {_MOST:,} different values", "say `num_classes` and `unknown: 0`"
                raise NoStatisticsError(column.name, message, help=fix)

    def result(self) -> dict[str, object]:
        kept = [
            self._select_values(position, column) if self._field._needs_vocabulary(position, column) else None
            for position, column in enumerate(self._columns)
        ]
        return {"vocabulary": kept}

    def _select_values(self, position: int, column: Column) -> list[Any]:
        counts, asked, unknown = self._counts[position], self._field._class_limit(position), self._field.unknown
        room = None if asked is None else asked - (unknown is not None)
        if not counts and unknown is None:
            fix = "leave the field out, or say `num_classes` and `unknown: 0`"
            raise NoStatisticsError(column.name, "has no value in the training rows", help=fix)
        if room is None or len(counts) <= room:
            if asked is None and unknown is not None and unknown > len(counts):
                raise ValueError(
                    f"`unknown` is class {unknown}, and `{column.name}` makes only "
                    f"{format_count(len(counts) + 1, 'class')}"
                )
            return sorted(counts)
        if unknown is None:
            message = f"has {len(counts):,} different values, and num_classes is {asked}"
            fix = f"`num_classes: {len(counts)}`, or `unknown: 0`, the class of those that are rarest"
            raise NoStatisticsError(column.name, message, help=fix)
        ranked = sorted(counts, key=lambda value: (-counts[value], value))
        return sorted(ranked[:room])
