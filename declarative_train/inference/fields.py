"""Conversion of new rows to the fields of a trained model, a limited number of rows at a time.

Columns are converted with the statistics, vocabularies and types of the run's columns: a column with only `1` and `2`
is text if the run's column had `1`, `2` and `A`. An error about a value names its file and row."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from declarative_train.components.data import LISTS, MESSAGES, BadValueError, Column, Field, MissingPackageError
from declarative_train.components.fields import FIELDS
from declarative_train.components.fields.columns import format_shape
from declarative_train.core.diagnostics.suggest import did_you_mean
from declarative_train.data.lazy_fields import LazyFieldError, LazyValues, TransformChain
from declarative_train.files.paths import SourceError
from declarative_train.inference.input import Input, InputChunk, InputError, check_columns
from declarative_train.inference.trained import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from declarative_train.data.spec import DataSpec, FieldSpec

_Want = Literal["text", "number", "date", "picture", "lists"]
_PICTURES = 64  # most images that are decoded at once


class RowConverter:
    """Converter of new rows to some of the run's fields."""

    def __init__(self, data: DataSpec, names: Collection[str], input: Input, keep: Sequence[str] = ()) -> None:
        """Prepare the conversion of rows of `input` to the fields `names` of the run's `data`. `keep`: further columns
        of the input to read. Raises UsageError if a column is missing."""
        own = [FIELDS.read(spec.component) for spec in data.fields if spec.name in names]
        names = {*names, *(field.follows for field in own if field.follows is not None)}  # boxes need their image
        specs = [spec for spec in data.fields if spec.name in names]
        if unknown := [name for name in keep if name not in input.names]:
            raise UsageError(f"--keep {unknown[0]}: {input.title} has no such column; help: "
                             f"{did_you_mean(unknown[0], input.names)}")  # fmt: skip
        self._input = input
        self._keep = tuple(keep)
        self._converters = [_FieldConverter(spec) for spec in specs if not _is_picture(spec)]
        self._pictures = _ImageConverter(data, [spec for spec in specs if _is_picture(spec)])
        self.columns = tuple(dict.fromkeys(name for spec in specs for name in spec.columns))
        if not (len(input.names) == 1 and len(self.columns) == 1 and input.title.endswith(".npy")):
            check_columns(self.columns, input.names, input.title)
        self._wants: dict[str, _Want] = {}
        for converter in self._converters:
            self._wants |= converter.wants()
        self._wants |= self._pictures.wants

    @property
    def read_columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.columns, *self._keep)))

    def chunks(self) -> Iterator[tuple[InputChunk, dict[str, np.ndarray]]]:
        """Read all rows of the input in chunks. Yield each chunk and its values, a dict from field to array (N, ...).
        Raises InputError."""
        for chunk in self._input.read(self.read_columns):
            yield from self.convert(chunk)

    def convert(self, chunk: InputChunk) -> Iterator[tuple[InputChunk, dict[str, np.ndarray]]]:
        """Convert the rows of one chunk, which must have the columns `read_columns`. Yield (chunk, values); `values` is
        a dict from field to array (N, ...). With image fields, the chunk is divided, and a pair is yielded for each
        part."""
        for part in _split(chunk, _PICTURES) if self._pictures.columns else (chunk,):
            read = {name: _to_numpy(name, self._wants[name], part, self._input.decimal) for name in self.columns}
            values = {converter.spec.name: converter.make(read, part) for converter in self._converters}
            yield part, values | self._pictures.make(read, part)


def columns_of_folder(data: DataSpec) -> dict[str, str]:
    """Return {column: new name} for the columns `image` and `label` of a folder of images. `image` gets the name of the
    column that the run's image fields read, and `label` that of its category fields. A column is left out if these
    fields read no column, or several."""
    found = {}
    for column, kind in (("image", "image"), ("label", "category")):
        read = {name for spec in data.fields if spec.component.get("type") == kind for name in spec.columns}
        if len(read) == 1:
            found[column] = read.pop()
    return found


def select_columns(chunk: InputChunk, names: Sequence[str]) -> pa.Table:
    """Return the columns `names` of a chunk as an Arrow table. Values are not converted: columns of a csv are text."""
    import pyarrow as pa

    def array(values: Any) -> Any:
        if not isinstance(values, np.ndarray):
            return values
        if values.ndim == 1:
            return pa.array(values)
        flat = values.reshape(len(values), -1)
        return pa.FixedSizeListArray.from_arrays(pa.array(flat.ravel()), flat.shape[1])

    return pa.table({name: array(chunk.columns[name]) for name in names})


def _is_picture(spec: FieldSpec) -> bool:
    return FIELDS.read(spec.component).is_lazy


def _split(chunk: InputChunk, size: int) -> Iterator[InputChunk]:
    """Split a chunk into chunks of at most `size` rows."""
    for begin in range(0, chunk.num_rows, size):
        count = min(size, chunk.num_rows - begin)
        columns = {name: values[begin : begin + count] for name, values in chunk.columns.items()}
        yield InputChunk(chunk.title, chunk.start + begin, count, columns, _behind(chunk, begin), chunk.messages)


def _behind(chunk: InputChunk, begin: int) -> Callable[[int], str]:
    return lambda row: chunk.place(begin + row)


class _ImageConverter:
    """Converter of all image fields together, with the run's transforms for evaluation. They are converted together
    because one transform may change several fields in the same way."""

    def __init__(self, data: DataSpec, specs: Sequence[FieldSpec]) -> None:
        self._chain = TransformChain.of(data)
        self._specs = {spec.name: spec for spec in specs}
        self._fields = {spec.name: FIELDS.read(spec.component) for spec in specs}
        self.wants: dict[str, _Want] = {}
        for spec in specs:
            self.wants |= dict.fromkeys(spec.columns, "lists" if self._fields[spec.name].takes_lists else "picture")
        self.columns = tuple(self.wants)

    def make(self, read: Mapping[str, np.ndarray], chunk: InputChunk) -> dict[str, np.ndarray]:
        if not self._specs:
            return {}
        given = {name: self._lazy_values(name, spec, read, chunk) for name, spec in self._specs.items()}
        shapes = {name: spec.tensor.shape for name, spec in self._specs.items()}
        keys = np.arange(chunk.start, chunk.start + chunk.num_rows)
        try:
            return self._chain.arrays(given, shapes, keys, None)
        except LazyFieldError as error:
            raise InputError(_message(self._specs[error.name], error.cause, chunk)) from None
        except MissingPackageError as error:
            raise UsageError(str(error)) from None

    def _lazy_values(self, name: str, spec: FieldSpec, read: Mapping[str, np.ndarray], chunk: InputChunk) -> LazyValues:
        columns = []
        for each in spec.columns:
            values = read[each]
            first = next((value for value in values if value is not None), "") if values.dtype == object else None
            dtype = "bytes" if isinstance(first, bytes) else "object" if values.dtype == object else str(values.dtype)
            is_list = dtype == "object" and self.wants[each] == "lists"
            columns.append(Column(each, LISTS if is_list else dtype, values.shape[1:]))
        if (shape_error := self._fields[name].check(columns)) is not None:
            raise InputError(f"{chunk.title}: field `{name}`: {shape_error.message}")
        return LazyValues.of(self._fields[name], columns, read)


class _FieldConverter:
    """Converter of columns of new rows to one field. The columns must have the same types as in the training run. If
    the field relied on a range that the source of the run guaranteed, the values must be in this range."""

    def __init__(self, spec: FieldSpec) -> None:
        self.spec = spec
        self._field: Field = FIELDS.read(spec.component)
        found = spec.statistics.get("vocabulary")
        self._vocabularies: list[Any] = found if isinstance(found, list) else [None] * len(spec.columns)

    def wants(self) -> dict[str, _Want]:
        takes_text = self._field.takes_text
        if self._field.takes_dates:
            return dict.fromkeys(self.spec.columns, "date")
        return {
            name: "text" if takes_text or (vocabulary and isinstance(vocabulary[0], str)) else "number"
            for name, vocabulary in zip(self.spec.columns, self._vocabularies, strict=True)
        }

    def make(self, read: Mapping[str, np.ndarray], chunk: InputChunk) -> np.ndarray:
        arrays = [read[name] for name in self.spec.columns]
        columns = [self._column(at, name, read[name], chunk) for at, name in enumerate(self.spec.columns)]
        shape_error = self._field.check(columns) if chunk.num_rows else None
        if shape_error is not None:
            raise InputError(f"{chunk.title}: field `{self.spec.name}`: {shape_error.message}")
        try:
            made = self._field.convert(arrays, columns, self.spec.statistics)
        except BadValueError as error:
            raise InputError(_message(self.spec, error, chunk)) from None
        if made.shape[1:] != self.spec.tensor.shape:
            found, wanted = format_shape(made.shape[1:]), format_shape(self.spec.tensor.shape)
            text = f"field `{self.spec.name}`: a row has {found}, but the model needs {wanted}"
            raise InputError(f"{chunk.title}: {text}")
        return made

    def _column(self, at: int, name: str, values: np.ndarray, chunk: InputChunk) -> Column:
        dtype = "object" if values.dtype == object else str(values.dtype)
        if dtype == "object" and _has_messages(name, chunk):
            return Column(name, MESSAGES)
        if dtype == "object" and isinstance(next((each for each in values if each is not None), ""), bytes):
            dtype = "bytes"
        return Column(name, dtype, values.shape[1:], self._num_guaranteed(at))

    def _num_guaranteed(self, at: int) -> int | None:
        """Return n if the field accepts only integers from 0 to n-1, because the source of the training data guaranteed
        that its column has no others. Return None otherwise, for example if the field has a vocabulary or the key
        `num_classes`. `at`: index of the column among those of the field."""
        component, intervals = self.spec.component, self.spec.tensor.intervals
        if self._vocabularies[at] is not None or component.get("num_classes") is not None or not intervals:
            return None
        if component["type"] == "tensor" and (component.get("dtype") is not None or self.spec.tensor.is_floating):
            return None
        return int((intervals[at] if len(intervals) > 1 else intervals[0])[1]) + 1


def _has_messages(name: str, chunk: InputChunk) -> bool:
    """Return whether the values of the column `name` are lists of messages."""
    from declarative_train.components.datasets.arrow_columns import describe

    values = chunk.columns[name]
    if isinstance(values, np.ndarray):
        return name in chunk.messages
    column = describe(name, values.type)
    return isinstance(column, Column) and column.dtype == MESSAGES


def _message(spec: FieldSpec, error: BadValueError, chunk: InputChunk) -> str:
    place = chunk.place(error.row)
    text = f"{place}: field `{spec.name}`: {error}"
    if error.problem == "missing":
        key = {"tensor": "missing: mean", "date": "missing: zero"}.get(str(spec.component["type"]), "unknown: 0")
        return f"{text}; help: fill it in the file, or train with `{key}` in the recipe"
    if error.problem == "outside" and "vocabulary" in spec.statistics:
        at = spec.columns.index(error.column)
        vocabularies: Any = spec.statistics["vocabulary"]
        known = [str(each) for each in vocabularies[at] or ()]
        value = str(error).split(" is `", 1)[-1].split("`", 1)[0]
        return f"{text}; help: {did_you_mean(value, known)}; train with `unknown: 0` to give unknown values a class"
    return f"{text}; help: change it in the file, or leave the row out"


def _to_numpy(name: str, want: _Want, chunk: InputChunk, decimal: str) -> np.ndarray:
    """Return the column `name` of a chunk as a numpy array of numbers, of bool, or of text as objects. Missing values
    are nan or None. `want`: the type that the column had in the run. `decimal`: the decimal point of numbers in
    text."""
    import pyarrow as pa

    values = chunk.columns[name]
    if want == "number" and isinstance(values, np.ndarray) and values.dtype == object:
        values = pa.array(values, pa.string())  # names of folders
    if isinstance(values, np.ndarray):
        if want == "text" and values.dtype != object:
            return np.asarray([None if value != value else str(value) for value in values.tolist()], object)
        return values
    from declarative_train.components.datasets.arrow_columns import describe, to_numpy

    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    is_file = pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type)
    if want == "picture" and is_file:
        return to_numpy(Column(name, "bytes"), values, chunk.title)
    if want == "lists" and pa.types.is_nested(values.type):
        return to_numpy(Column(name, LISTS), values, chunk.title)
    if want not in ("number", "date") and not pa.types.is_nested(values.type):
        values = values.cast(pa.string())
    elif want == "number" and (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        values = _parse_numbers(name, values, chunk, decimal)
    present = values.drop_null()
    column = describe(name, values.type, present[0].as_py() if len(present) else None)
    if isinstance(column, str):
        raise InputError(f"{chunk.title}: `{name}`: {column}")
    try:
        return to_numpy(column, values, chunk.title)
    except SourceError as error:
        raise InputError(f"{error}; the value is in the rows from {chunk.place(0)} on") from None


def _parse_numbers(name: str, values: Any, chunk: InputChunk, decimal: str) -> Any:
    """Convert a column of texts to numbers. The result has integers if all values are integers, floats if all are
    numbers, and bool if all are `true` or `false`. `name`: the column's name, for messages. `values`: the column as an
    Arrow array. `decimal`: the decimal point of floats. Raises InputError if the values are none of these."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if decimal != ".":
        values = pc.replace_substring(values, decimal, ".")
    for text in (values, pc.utf8_trim_whitespace(values)):
        for kind in (pa.int64(), pa.float64(), pa.bool_()):
            try:
                return text.cast(kind)
            except pa.ArrowInvalid:
                continue
    for row, value in enumerate(values.to_pylist()):
        if value is not None and not _is_number(value):
            raise InputError(f"{chunk.place(row)}: `{name}` is `{value:.40}`, but the model needs a number")
    raise InputError(f"from {chunk.place(0)} on: `{name}` has both numbers and truth values")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return text.strip().lower() in ("true", "false")
    return True
