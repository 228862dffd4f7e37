"""Arrow columns: their description as `Column`, their conversion to numpy, and a table in memory."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from declarative_train.components.data import LISTS, MESSAGES, Column, Table
from declarative_train.files.open_files import format_path, objects
from declarative_train.files.paths import SourceError

if TYPE_CHECKING:
    import numpy as np

EXACT = 2**53  # integers up to this are exact in float64, the dtype of integer columns with missing values


def describe(name: str, kind: Any, first: Any = None) -> Column | str:
    """Return the Column `name` for the Arrow type `kind`, or a text with the reason why the column cannot be read.
    `first`: a value of the column, None if all are missing. If it is a list, all lists of the column must have its
    length."""
    import pyarrow as pa

    types = pa.types
    kind = _without_views(kind)
    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_boolean(kind):
        return Column(name, "bool")
    if types.is_integer(kind):
        return Column(name, str(kind))
    if types.is_floating(kind):  # Arrow's own names are halffloat, float and double
        return Column(name, f"float{kind.bit_width}")
    if types.is_decimal(kind) or types.is_null(kind):  # null: all values are missing, which many fields accept
        return Column(name, "float64")
    if types.is_date(kind) or types.is_timestamp(kind):
        return Column(name, "datetime64[ns]")
    if types.is_string(kind) or types.is_large_string(kind):
        return Column(name, "object")
    if _holds_files(kind):
        return Column(name, "bytes")
    if types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind):
        return _describe_list(name, kind, first)
    return f"it holds {kind}, which is not a number, a text or a date"


def _without_views(kind: Any) -> Any:
    """Return an Arrow type in which ordinary text and bytes replace the types `string_view` and `binary_view`. Polars
    writes these types, which most functions of pyarrow do not support."""
    import pyarrow as pa

    types = pa.types
    if not hasattr(types, "is_string_view"):  # pyarrow 15
        return kind
    if types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary_view(kind):
        return pa.large_binary()
    if types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _without_views(kind.value_type), kind.ordered)
    if types.is_list(kind) or types.is_large_list(kind):
        make = pa.list_ if types.is_list(kind) else pa.large_list
        return make(kind.value_field.with_type(_without_views(kind.value_type)))
    if types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_without_views(kind.value_type)), kind.list_size)
    if types.is_struct(kind):
        return pa.struct(
            [each.with_type(_without_views(each.type)) for each in map(kind.field, range(kind.num_fields))]
        )
    return kind


def without_views(table: Any) -> Any:
    """Return the Arrow table in which ordinary text and bytes replace the types `string_view` and `binary_view`."""
    for place, field in enumerate(table.schema):
        kind = _without_views(field.type)
        if kind != field.type:
            table = table.set_column(place, field.with_type(kind), _cast(table.column(place), kind))
    return table


def _cast(values: Any, kind: Any) -> Any:
    import pyarrow as pa

    if not pa.types.is_dictionary(kind):
        return values.cast(kind)
    pieces = [(each.indices, each.dictionary.cast(kind.value_type)) for each in values.chunks]
    made = [pa.DictionaryArray.from_arrays(*piece, ordered=kind.ordered) for piece in pieces]
    return pa.chunked_array(made, kind)


def _holds_files(kind: Any) -> bool:
    """Return whether the values of an Arrow type are files: bytes, or the struct {bytes, path} in which Hugging Face
    `datasets` stores images."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        place = kind.get_field_index("bytes")
        return place >= 0 and _holds_files(kind.field(place).type)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _describe_list(name: str, kind: Any, first: Any) -> Column | str:
    import pyarrow as pa

    if pa.types.is_struct(kind.value_type) and _is_of_json(kind.value_type):
        return Column(name, MESSAGES)
    if _is_of_lists(kind):
        return Column(name, LISTS)
    inner = describe(name, kind.value_type)
    if isinstance(inner, str) or inner.dtype not in _NUMBERS | {"bool"} or inner.shape:
        return f"it holds {kind}, and only lists of numbers, or of messages, can be read"
    if pa.types.is_fixed_size_list(kind):
        return Column(name, inner.dtype, (kind.list_size,))
    if first is None:
        return "it holds lists, but all are missing"
    return Column(name, inner.dtype, (len(first),))


def _is_of_json(kind: Any) -> bool:
    """Return whether an Arrow type can be written as JSON: it consists of text, numbers and booleans, in lists and
    structs. (JSON has no dates.)"""
    import pyarrow as pa

    types = pa.types
    if types.is_struct(kind):
        return all(_is_of_json(kind.field(at).type) for at in range(kind.num_fields))
    if types.is_list(kind) or types.is_large_list(kind):
        return _is_of_json(kind.value_type)
    tests = (types.is_string, types.is_large_string, types.is_integer, types.is_floating, types.is_boolean)
    return types.is_null(kind) or any(test(kind) for test in tests)


def _is_of_lists(kind: Any) -> bool:
    """Return whether an Arrow list type is a list of texts, or of lists of numbers at any depth."""
    import pyarrow as pa

    types = pa.types

    def is_list(each: Any) -> bool:
        return bool(types.is_list(each) or types.is_large_list(each) or types.is_fixed_size_list(each))

    inner = kind.value_type
    if types.is_string(inner) or types.is_large_string(inner):
        return True
    if not is_list(inner):
        return False
    while is_list(inner):
        inner = inner.value_type
    return bool(types.is_integer(inner) or types.is_floating(inner) or types.is_null(inner))


_NUMBERS = frozenset(
    {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)} | {"float16", "float32", "float64"}
)


def to_numpy(column: Column, values: Any, where: str) -> np.ndarray:
    """Return Arrow values as the numpy array that `Table.read` returns for `column`. `values`: a ChunkedArray or Array.
    `where`: path of the file, for messages. Raises SourceError."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(values, pa.ChunkedArray):
        values = values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()  # combining copies the values
        if isinstance(values, pa.ChunkedArray):  # more than 2 GiB of text stays in chunks
            return np.concatenate([to_numpy(column, chunk, where) for chunk in values.chunks])
    if not column.shape and column.dtype in _NUMBERS and not values.null_count and pa.types.is_primitive(values.type):
        return np.asarray(values.to_numpy())  # without a copy; tested first because it is the most frequent case
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if column.shape:
        return _lists_to_numpy(column, values, where)
    if column.dtype == "bytes" and pa.types.is_struct(values.type):
        values = pc.struct_field(values, "bytes")
    if column.dtype in ("object", "bytes"):
        return objects(values.to_pylist())
    if column.dtype in (MESSAGES, LISTS):
        found = values.to_pylist()
        return objects([None if each is None else json.dumps(each, ensure_ascii=False) for each in found])
    if column.dtype == "datetime64[ns]":
        return np.asarray(values.cast(pa.timestamp("ns"), safe=False).to_numpy(zero_copy_only=False), "datetime64[ns]")
    if pa.types.is_decimal(values.type) or pa.types.is_null(values.type):
        values = values.cast(pa.float64())
    if values.null_count and pa.types.is_integer(values.type):
        _check_exact(column, values, where)
    if pa.types.is_boolean(values.type) and values.null_count:
        values = values.cast(pa.uint8()).cast(pa.float64())
    return np.asarray(values.to_numpy(zero_copy_only=False))


def _lists_to_numpy(column: Column, values: Any, where: str) -> np.ndarray:
    import numpy as np
    import pyarrow.compute as pc

    width = column.shape[0]
    if values.null_count:
        row = int(np.argmax(np.asarray(values.is_null())))
        raise SourceError(
            "unreadable", f"`{column.name}` in {format_path(where)} has no list in row {row + 1} of those read"
        )
    lengths = np.asarray(pc.list_value_length(values))
    if (wrong := np.flatnonzero(lengths != width)).size:
        raise SourceError(
            "unreadable",
            f"`{column.name}` in {format_path(where)} holds lists of different lengths: {width} at first, then "
            f"{lengths[wrong[0]]}",
        )
    flat = Column(column.name, column.dtype)
    return to_numpy(flat, values.flatten(), where).reshape(len(values), width)


def _check_exact(column: Column, values: Any, where: str) -> None:
    import pyarrow.compute as pc

    extremes = pc.min_max(values).as_py()
    if max(abs(v) for v in extremes.values() if v is not None) > EXACT if extremes["min"] is not None else False:
        message = (
            f"`{column.name}` in {format_path(where)} has missing values and integers beyond 2^53: no dtype "
            "holds both exactly"
        )
        raise SourceError("unreadable", message, help="fill its missing values in the file")


class MemoryTable(Table):
    """Table in memory: Arrow tables, concatenated by rows. A column is converted to numpy when it is first read."""

    def __init__(
        self, pieces: Sequence[tuple[str, Any]], bad: Mapping[str, Sequence[tuple[int, str]]] | None = None
    ) -> None:
        """Concatenate the Arrow tables in `pieces`, which are pairs (path of the file, table).

        `bad`: the rows of each file that were left out, as pairs (row in the file, counted from 0; reason). The reason
        is "" for blank lines."""
        import pyarrow as pa

        self._gone = {path: sorted(row for row, _ in rows) for path, rows in (bad or {}).items() if rows}
        self.skipped = tuple(
            (f"row {row + 1} of {format_path(path)}", why)
            for path, rows in (bad or {}).items()
            for row, why in rows
            if why
        )

        self.files = tuple(path for path, _ in pieces)
        for path, piece in pieces[1:]:
            check_same_columns(self.files[0], pieces[0][1].column_names, path, piece.column_names)
        names = check_distinct(self.files[0], pieces[0][1].column_names)
        self._starts = [0, *accumulate(piece.num_rows for _, piece in pieces)]
        try:
            self._arrow = pa.concat_tables([piece.select(names) for _, piece in pieces], promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            mixed = [name for name in names if len({str(piece.schema.field(name).type) for _, piece in pieces}) > 1]
            self._arrow = pa.concat_tables([_as_text(piece.select(names), mixed) for _, piece in pieces])
        self.num_rows = self._arrow.num_rows
        self.columns, self.left_out = describe_all(self._arrow.schema, self._first)
        self._numpy: dict[str, np.ndarray] = {}
        self.odd: dict[str, dict[int, str]] = {}  # by column: rows whose text is not a number

    def _first(self, name: str) -> Any:
        present = self._arrow.column(name).drop_null()
        return present[0].as_py() if len(present) else None

    def read(self, columns: Sequence[str], rows: slice | np.ndarray) -> dict[str, np.ndarray]:
        return {name: self._column(name)[rows] for name in columns}

    def read_once(self, columns: Sequence[str], rows: slice) -> dict[str, np.ndarray]:
        start, stop, _ = rows.indices(self.num_rows)
        kept = {name: self._numpy[name][rows] for name in columns if name in self._numpy}
        pieces = {name: self._arrow.column(name).slice(start, stop - start) for name in columns if name not in kept}
        return kept | {name: to_numpy(self.columns[name], piece, self.files[0]) for name, piece in pieces.items()}

    def take_lists(self, names: Sequence[str]) -> None:
        self.columns = with_lists(self.columns, names, self._arrow.schema)
        for name in names:
            self._numpy.pop(name, None)

    def read_as_numbers(self, name: str) -> None:
        """Convert the text column `name` to numbers, if more than four fifths of its values are numbers or missing.
        Values that are not numbers become missing. Otherwise the column stays text."""
        import numpy as np

        values = self._column(name)
        found = np.fromiter((_number(value) for value in values.tolist()), np.float64, len(values))
        lost = np.isnan(found) & np.fromiter((value is not None for value in values.tolist()), bool, len(values))
        if 5 * int(lost.sum()) < len(values):
            self.odd[name] = {row: str(values[row]) for row in np.flatnonzero(lost).tolist()}
            self._numpy[name] = found
            self.columns = {**self.columns, name: Column(name, "float64")}

    def _column(self, name: str) -> np.ndarray:
        if name not in self._numpy:
            self._numpy[name] = to_numpy(self.columns[name], self._arrow.column(name), self.files[0])
        return self._numpy[name]

    def place(self, row: int) -> str:
        return place_among(self.files, self._starts, self._gone, row)


def _number(value: Any) -> float:
    try:
        return float("nan") if value is None else float(value)
    except ValueError:
        return float("nan")


def place_among(files: Sequence[str], starts: Sequence[int], gone: Mapping[str, Sequence[int]], row: int) -> str:
    """Return where a row is, for messages: `row 12 of data/b.csv`. The number counts all rows of the file from 1, also
    those that the table leaves out.

    `row`: index of the row in the table. `starts`: for each file, the index in the table of its first row. `gone`: a
    dict from the path of a file to its rows that were left out, counted from 0, ascending."""
    from bisect import bisect_right

    position = bisect_right(starts, row) - 1
    inside = row - starts[position]
    for each in gone.get(files[position], ()):
        if each > inside:
            break
        inside += 1
    return f"row {inside + 1} of {format_path(files[position])}"


def place(files: Sequence[str], starts: Sequence[int], row: int) -> str:
    """Return where a row is, for messages: `row 12 of data/b.csv`. The number counts rows of the file from 1, without
    the header. `row`: index of the row in the table. `starts`: index in the table of the first row of each file."""
    from bisect import bisect_right

    position = bisect_right(starts, row) - 1
    return f"row {row - starts[position] + 1} of {format_path(files[position])}"


def _as_text(piece: Any, mixed: Sequence[str]) -> Any:
    """Return `piece`, the Arrow table of one file, with the columns `mixed` converted to text, because their types
    differ between the files."""
    import pyarrow as pa

    for name in mixed:
        piece = piece.set_column(piece.column_names.index(name), name, piece.column(name).cast(pa.string()))
    return piece


def describe_all(schema: Any, first: Any) -> tuple[dict[str, Column], dict[str, str]]:
    """Return two dicts by column name for an Arrow schema: the columns that can be read, and for every other column the
    reason why it cannot be read. `first`: function that takes the name of a column and returns one of its values, or
    None if all are missing."""
    columns: dict[str, Column] = {}
    left_out: dict[str, str] = {}
    for field in schema:
        found = describe(field.name, field.type)
        if isinstance(found, str) and "list" in str(field.type):
            found = describe(field.name, field.type, first(field.name))
        if isinstance(found, str):
            left_out[field.name] = found
        else:
            columns[field.name] = found
    return columns, left_out


def with_lists(columns: Mapping[str, Column], names: Sequence[str], schema: Any) -> dict[str, Column]:
    """Return a copy of `columns` in which the columns `names` have the dtype LISTS, for lists of different lengths.
    Columns whose Arrow type is not a list stay unchanged. `schema`: Arrow schema of the columns."""
    import pyarrow as pa

    found = dict(columns)
    for name in names:
        place = schema.get_field_index(name)
        kind = pa.null() if place < 0 else schema.field(place).type
        if name in found and found[name].shape and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
            found[name] = Column(name, LISTS)
    return found


def check_distinct(path: str, names: Sequence[str]) -> list[str]:
    twice, count = Counter(names).most_common(1)[0] if names else ("", 0)
    if count > 1:
        message = f"{format_path(path)} has two columns called `{twice}`"
        raise SourceError("different_columns", message, help="give one of them another name in the file")
    return list(names)


def check_same_columns(first: str, names: Sequence[str], path: str, others: Sequence[str]) -> None:
    if set(names) == set(others):
        return
    more = [f"`{name}`" for name in others if name not in set(names)]
    less = [f"`{name}`" for name in names if name not in set(others)]
    parts = [f"lacks {', '.join(less[:5])}"] if less else []
    parts += [f"also has {', '.join(more[:5])}"] if more else []
    message = f"{format_path(path)} {' and '.join(parts)}: its columns are not those of {format_path(first)}"
    raise SourceError("different_columns", message)
