"""Field of a plugin: the user's code makes a tensor from columns. The user's class declares its shape and dtype."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_args

from pydantic import Field as Key
from pydantic import PrivateAttr, model_validator

from declarative_train.components.component import ShapeError
from declarative_train.components.data import BadValueError, Column, Tally
from declarative_train.components.datasets.plugin_columns import ColumnKeys
from declarative_train.components.fields.columns import Columns, FieldOfColumns
from declarative_train.components.plugin_components import PluginComponent, line_in_plugin, make_seeded
from declarative_train.core.amounts import format_count
from declarative_train.core.tensor_spec import FLOATING, DType, TensorSpec

if TYPE_CHECKING:
    import numpy as np

Size = int | str
"""Size of a dimension: a number, or the name of the argument that holds it."""


class PluginField(PluginComponent, FieldOfColumns):
    """Field of a plugin, whose class has one of two methods. `decode` makes the tensor of one row from the values of
    its columns. `decode_rows` makes the tensors of several rows at once, from arrays (N, ...)."""

    own: ClassVar[frozenset[str]] = frozenset({"type", "column", "columns", "exclude", "rows"})
    sizes: ClassVar[tuple[Size, ...]] = ()
    kind: ClassVar[DType] = "float32"
    count: ClassVar[Size | None] = None
    """`sizes`, `kind` and `count` are what the plugin's class declares as `shape`, `dtype` and `num_values`."""

    column: Annotated[str, Key(min_length=1)] | None = None
    """One column; or use `columns`."""
    columns: Columns | None = None
    """Several columns, by name or glob; `decode` gets a value of each, in their order."""
    exclude: Columns | None = None
    """Columns, by name or glob, that a glob of `columns` matches but that are left out."""
    rows: str | int | None = None
    """Rows of a window to use: a slice (`":168"`, `"1:"`), or one row; left out: all."""
    _object: Any = PrivateAttr(None)

    @classmethod
    def settle(cls) -> None:
        cls.meaning = tuple(sorted(set(cls.model_fields) - cls.own))

    @classmethod
    def declare(cls, key: str, value: object) -> None:
        if key == "dtype":
            if value not in get_args(DType):
                raise ValueError(f"`dtype` is {value!r}", f"it is one of {', '.join(get_args(DType))}")
            cls.kind = value  # type: ignore[assignment]
            return
        sizes = (value,) if key == "num_values" else value
        if not isinstance(sizes, tuple | list) or not all(cls._is_size(each) for each in sizes):
            what = "a number" if key == "num_values" else "a tuple of numbers"
            raise ValueError(
                f"`{key}` is not a size" if key == "num_values" else f"`{key}` is not a shape",
                f"it is {what} of 1 or more, or names an argument of `__init__`",
            )
        if key == "shape":
            cls.sizes = tuple(sizes)
        else:
            cls.count = sizes[0]

    @classmethod
    def _is_size(cls, value: object) -> bool:
        is_number = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        return is_number or (isinstance(value, str) and value in set(cls.model_fields) - cls.own)

    @model_validator(mode="after")
    def _agrees(self) -> PluginField:
        for size in (*self.sizes, *([] if self.count is None else [self.count])):
            found = self._size(size)
            if not isinstance(found, int) or found < 1:
                raise ValueError(f"`{size}` is {found}, and the size of a tensor is a number of 1 or more")
        return self

    def check(self, columns: Sequence[Column]) -> ShapeError | None:
        if not self.is_variadic and len(columns) != self.num_arguments:
            message = f"`{self.method}` of `{self.type}` takes {format_count(self.num_arguments, 'column')}"
            return ShapeError(f"{message}, and it has {len(columns)}", field=self._key)
        for column in columns:
            if (column.dtype == "object") != self.takes_text:
                holds = "text" if column.dtype == "object" else column.dtype
                hint = "`takes_text = True` in the class says that its columns hold text" if holds == "text" else None
                takes = "text" if self.takes_text else "no text"
                return ShapeError(
                    f"`{column.name}` holds {holds}, and `{self.type}` takes {takes}", field=self._key, help=hint
                )
        return None

    def row_spec(self, columns: Sequence[Column], statistics: Mapping[str, object]) -> TensorSpec:
        spec = TensorSpec(tuple(int(self._size(size)) for size in self.sizes), self.kind)
        return spec if self.count is None else spec.between([(0, int(self._size(self.count)) - 1)])

    def _size(self, size: Size) -> Any:
        return getattr(self, size) if isinstance(size, str) else size

    def tally(self, columns: Sequence[Column]) -> Tally | None:
        if self.kind in FLOATING or self.kind == "bool" or self.count is not None:
            return None
        return _PluginRangeTally(lambda values: self.convert(values, columns, {}))

    def convert(
        self, values: Sequence[np.ndarray], columns: Sequence[Column], statistics: Mapping[str, object]
    ) -> np.ndarray:
        from declarative_train.components.datasets.plugin_values import as_array

        spec = self.row_spec(columns, statistics)
        num_rows = len(values[0])
        made = self._build_object()
        wrong = partial(self._wrong, columns[0].name, f"{spec.dtype} of shape {spec.shape}")
        if self.method == "decode_rows":
            found: Any = self._call(made.decode_rows, columns[0].name, 0, *(each.copy() for each in values))
            if not hasattr(found, "__len__") or len(found) != num_rows:
                given = f"{len(found):,} values" if hasattr(found, "__len__") else f"a {type(found).__name__}"
                raise wrong(0, f"{given} for {format_count(num_rows, 'row')}")
        else:
            rows = zip(*values, strict=True)
            found = [self._call(made.decode, columns[0].name, row, *each) for row, each in enumerate(rows)]
        dtype = "float32" if spec.dtype == "bfloat16" else spec.dtype
        array = as_array(ColumnKeys.model_validate({"dtype": dtype, "shape": spec.shape}), found, wrong)
        if array.dtype != dtype:  # some values are missing
            raise wrong(int((array != array).argmax()), "None")
        if spec.num_values is not None and self.count is not None and num_rows:
            outside = ((array < 0) | (array >= spec.num_values)).reshape(len(array), -1)
            if outside.any():
                row = int(outside.any(axis=1).argmax())
                value = array.reshape(len(array), -1)[row][outside[row]][0]
                raise wrong(row, f"{value}, beyond 0..{spec.num_values - 1}")
        return array

    def _call(self, method: Callable[..., Any], column: str, row: int, *values: Any) -> Any:
        try:
            return method(*values)
        except Exception as error:  # the user's code may raise anything; show it to the user
            said = (str(error).splitlines() or [""])[0]
            where = line_in_plugin(error, self.plugin_path)
            message = f"`{self.method}` fails: {type(error).__name__}{said and f': {said}'}{where}"
            raise BadValueError("plugin", column, message, row=row) from error

    def _wrong(self, column: str, declared: str, row: int, found: str) -> BadValueError:
        message = f"`{self.method}` gives {found}, but {declared} is declared"
        hint = f"return that, or correct `shape` and `dtype` of the class `{self.plugin_class}`"
        return BadValueError("plugin", column, message, row=row, help=hint)

    def _build_object(self) -> Any:
        if self._object is None:
            self._object, _ = make_seeded(self)
        return self._object


class _PluginRangeTally(Tally):
    """Accumulator of the least and the greatest value of a plugin's integer field."""

    def __init__(self, convert: Callable[[Sequence[np.ndarray]], np.ndarray]) -> None:
        self._convert = convert
        self._ends: list[int] = []

    def add(self, values: Sequence[np.ndarray]) -> None:
        if len(values[0]):
            made = self._convert(values)
            self._ends += [int(made.min()), int(made.max())]
            self._ends = [min(self._ends), max(self._ends)]

    def result(self) -> dict[str, object]:
        return {"least": self._ends[0], "greatest": self._ends[1]} if self._ends else {}
