"""CSV files as a source: a table in memory. Large files are converted once to an Arrow file (`arrow_cache.py`)."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from io import TextIOWrapper
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field

from declarative_train.components.data import FilesDataset, Table
from declarative_train.components.datasets.arrow_cache import (
    BLOCK_BYTES,
    Budget,
    convert,
    in_memory_or_on_disk,
    open_decompressed,
)
from declarative_train.components.datasets.arrow_columns import check_distinct, check_same_columns
from declarative_train.core.names import check_unique_names
from declarative_train.files.open_files import check_beginning, format_path, packing, skips_bad_rows
from declarative_train.files.paths import SourceError

if TYPE_CHECKING:
    import pyarrow as pa

_MISFIT = re.compile(r"In CSV column #(\d+): .*?conversion error to [^:]*: (?:invalid value '(.*)'$)?", re.DOTALL)
_STRADDLES = "straddling object straddles two block boundaries"
_MOST_BLOCK = 1 << 30
_OF_EXCEL = "save the file as UTF-8 (from Excel: `CSV UTF-8`), or set `encoding`, such as cp1252"
_LOOKED_AT = 1 << 20  # rows to search for one that is not UTF-8
_WRONG_WIDTH = re.compile(r"(?:Row #(\d+): )?Expected (\d+) columns, got (\d+)")


class _BlockSize:
    """Number of bytes that pyarrow parses at a time. pyarrow rejects a row that is longer, so `grow` increases the
    number after such an error."""

    def __init__(self, block: int) -> None:
        self.block = block

    def grow(self, error: SourceError) -> None:
        """Multiply the size by 16, up to the maximum, if `error` says that a row is longer than a block. Raise `error`
        again if it has another reason, or if the size is already the maximum."""
        if _STRADDLES not in str(error.__cause__) or self.block >= _MOST_BLOCK:
            raise error
        self.block = min(self.block * 16, _MOST_BLOCK)


def _check_encoding(name: str) -> str:
    """Return `name` if it is an encoding that stores ASCII characters as single bytes. Raises ValueError otherwise."""
    try:
        same = "a,1\n".encode(name) == b"a,1\n"
    except LookupError:
        raise ValueError(f"there is no encoding `{name}`; common: utf-8, cp1252, latin-1, cp1250, cp1251") from None
    if not same:
        raise ValueError(f"files in {name} are not read; save them as UTF-8 (from Excel: `CSV UTF-8`)")
    return name


class CsvDataset(FilesDataset):
    """Rows of CSV files, read into memory. The first line has the names of the columns, without blanks around them.

    Types are detected from all values: integers, numbers, `true`/`false`, dates, else text. Empty fields, `NA`, `null`
    and `nan` are missing values, and so are the words in `missing_values`. Several files are one table, file after
    file. Files that end in `.gz`, `.bz2` or `.zst` are decompressed. Files of more than 1 GiB in total are converted
    once, to a file in the user's cache, and read from there in blocks."""

    type: Literal["csv"] = "csv"
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] = ","
    """Delimiter between two values."""
    columns: Annotated[tuple[str, ...], Field(min_length=1), AfterValidator(check_unique_names)] | None = None
    """Names of the columns of files that have no header line."""
    decimal: Literal[".", ","] = "."
    """Decimal separator of numbers: `,` in many European files."""
    encoding: Annotated[str, AfterValidator(_check_encoding)] = "utf-8"
    """Encoding of the text, such as `cp1252` of Excel's plain `CSV` in Western Europe. Encodings such as UTF-16, which
    do not store ASCII characters as single bytes, are not read: save such files as UTF-8."""
    missing_values: Annotated[tuple[str, ...], AfterValidator(check_unique_names)] = ()
    """More words for a missing value, such as `?` or `-`."""

    def open(self) -> Table:
        from declarative_train.components.datasets.arrow_columns import MemoryTable

        def in_memory(budget: Budget | None) -> Table:
            bad: dict[str, list[tuple[int, str]]] = {}
            return MemoryTable([(path, self._read(path, bad.setdefault(path, []), budget)) for path in files], bad)

        def on_disk() -> Table | None:
            options = {key: value for key, value in self.as_data().items() if key != "path"}
            room = _BlockSize(BLOCK_BYTES)
            return convert(files, self.type, options, partial(self._schema, room), partial(self._batches, room))

        files = self.files()
        return _without_bytes(in_memory_or_on_disk(files, in_memory, on_disk))

    def _read(self, path: str, bad: list[tuple[int, str]], budget: Budget | None) -> pa.Table:
        room = _BlockSize(BLOCK_BYTES)
        while True:
            try:
                return _retry_after_signal(lambda: self._whole(path, bad, room, budget))
            except SourceError as error:
                room.grow(error)

    def _whole(self, path: str, bad: list[tuple[int, str]], room: _BlockSize, budget: Budget | None) -> pa.Table:
        from pyarrow import csv as arrow_csv

        bad.clear()
        with self._open(path, budget) as file:
            table = arrow_csv.read_csv(
                file,
                # without threads: those of a pool do not survive a fork, and then errors name their row
                read_options=arrow_csv.ReadOptions(
                    use_threads=False, column_names=self.columns, block_size=room.block, encoding=self.encoding
                ),
                parse_options=self._make_parse_options(bad),
                convert_options=self.conversion(),
            )
            return table.rename_columns([name.strip() for name in table.column_names])

    @contextmanager
    def _open(self, path: str, budget: Budget | None = None) -> Iterator[Any]:
        """Yield an opened file. An error in the `with` block, while the file is read, becomes a SourceError."""
        import pyarrow as pa

        if packing(path) is None:
            check_beginning(path, "a CSV file", None)
        try:
            with open_decompressed(path) if budget is None else budget.open_decompressed(path, self.delimiter) as file:
                yield file
        except UnicodeDecodeError as error:  # in the names of columns, which pyarrow decodes on access
            if self.encoding.lower() not in ("utf-8", "utf8"):
                raise SourceError(
                    "unreadable", f"{format_path(path)} is not {self.encoding}: {error.reason}"
                ) from error
            what = error.object.decode("utf-8", "backslashreplace").strip()
            message = f"the first line of {format_path(path)} is not UTF-8: the column `{what:.40}`"
            raise SourceError("unreadable", message, help=_OF_EXCEL) from error
        except pa.ArrowInvalid as error:
            raise self.explain(path, str(error)) from error
        except OSError as error:
            raise SourceError("unreadable", f"cannot read {format_path(path)}: {error}") from error

    def _schema(self, room: _BlockSize, files: Sequence[str], heartbeat: Callable[[], None]) -> Any:
        """Return an Arrow schema whose types can hold all values of all files. pyarrow detects the types from the first
        block of a file. If a later value does not fit the type of its column, the column gets the next wider type, and
        all files are read again. `room`: size of the blocks. `heartbeat`: called after each block, to show progress."""
        import pyarrow as pa

        wider: dict[str, Any] = {}
        while True:
            found: dict[str, Any] = {}
            for path in files:
                try:
                    misfit = self._find_misfit(room, path, files[0], found, wider, heartbeat)
                except SourceError as error:
                    room.grow(error)
                    break
                if misfit is not None:
                    name, value = misfit
                    wider[name] = self._next_type({**found, **wider}[name], value)
                    break
            else:
                return pa.schema(list(found.items()))

    def _find_misfit(
        self,
        room: _BlockSize,
        path: str,
        first: str,
        found: dict[str, Any],
        wider: dict[str, Any],
        heartbeat: Callable[[], None],
    ) -> tuple[str, str | None] | None:
        """Return (column, text) for the first value in the file `path` that does not fit the type of its column. Return
        None if all values fit.

        `room`: how many bytes pyarrow parses at a time. `first`: path of the first file, whose columns this file must
        have. `found`: {column: detected type}; the types detected in this file are added to it. `wider`: {column: type
        to use instead of the detected one}. `heartbeat`: called after each block.
        """
        import pyarrow as pa

        with self._open(path) as file, self._in_blocks(room, file, {}, []) as reader:
            header = list(reader.schema.names)
        names = check_distinct(path, [name.strip() for name in header])
        if found:
            check_same_columns(first, list(found), path, names)
        types = {**found, **wider}
        raw = {name: types[name.strip()] for name in header if name.strip() in types}
        try:
            with self._open(path) as file, self._in_blocks(room, file, raw, []) as reader:
                found |= dict(zip(names, reader.schema.types, strict=True))
                for _ in reader:
                    heartbeat()
        except SourceError as error:
            said = _MISFIT.search(str(error.__cause__))
            if not isinstance(error.__cause__, pa.ArrowInvalid) or said is None:
                raise
            found |= {name: kind for name, kind in types.items() if name not in found}
            return names[int(said[1])], said[2]
        return None

    def _next_type(self, kind: Any, value: str | None) -> Any:
        """Return a wider Arrow type for a column, because the type `kind` cannot hold its value `value`."""
        import pyarrow as pa
        from pyarrow import csv as arrow_csv

        order = [pa.null(), pa.int64(), pa.bool_(), pa.date32(), pa.time32("s")]
        order += [pa.timestamp(unit, zone) for unit in ("s", "ns") for zone in (None, "UTC")]
        order += [pa.float64(), pa.string(), pa.binary()]
        place = order.index(kind) + 1
        if value is not None:
            alone = 'x\n"{}"\n'.format(value.replace('"', '""')).encode()
            usual = arrow_csv.ReadOptions(use_threads=False, block_size=len(alone) + 1)
            parsing = arrow_csv.ParseOptions(newlines_in_values=True)
            read = arrow_csv.read_csv(pa.BufferReader(alone), usual, parsing, self.conversion())
            place = max(place, order.index(read.schema.types[0]))
        return order[place]

    def _batches(self, room: _BlockSize, path: str, schema: Any, bad: list[tuple[int, str]]) -> Iterator[Any]:
        import pyarrow as pa

        with self._open(path) as file, self._in_blocks(room, file, {}, []) as reader:
            header = list(reader.schema.names)
        names = [name.strip() for name in header]
        types = {name: schema.field(name.strip()).type for name in header}
        with self._open(path) as file, self._in_blocks(room, file, types, bad) as reader:
            for batch in reader:
                columns = [batch.column(names.index(field.name)) for field in schema]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def _in_blocks(self, room: _BlockSize, file: Any, types: dict[str, Any], bad: list[tuple[int, str]]) -> Any:
        return self._open_reader(file, self.columns, types, bad, room.block)

    def read_text(self, file: Any, names: Sequence[str] | None, columns: Sequence[str], block_bytes: int) -> Any:
        """Return a reader of record batches (of pyarrow) with the columns `columns`, all as text. `names`: the names of
        all columns; None: they are in the first line. `block_bytes`: size of a batch. Reading raises ArrowInvalid,
        which the method `explain` turns into a SourceError."""
        import pyarrow as pa

        return self._open_reader(file, names, dict.fromkeys(columns, pa.string()), [], block_bytes, columns)

    def _open_reader(
        self,
        file: Any,
        names: Sequence[str] | None,
        types: dict[str, Any],
        bad: list[tuple[int, str]],
        block_bytes: int,
        only: Sequence[str] = (),
    ) -> Any:
        from pyarrow import csv as arrow_csv

        options = self.conversion()
        options.column_types, options.include_columns = types, list(only)
        return arrow_csv.open_csv(
            file,
            read_options=arrow_csv.ReadOptions(
                use_threads=False, column_names=names, block_size=block_bytes, encoding=self.encoding
            ),
            parse_options=self._make_parse_options(bad),
            convert_options=options,
        )

    def _make_parse_options(self, bad: list[tuple[int, str]]) -> Any:
        """Return the options for pyarrow's parser. If bad rows are skipped, the parser appends a pair (row, reason) to
        `bad` for each of them. Rows are counted from 0, without the header."""
        from pyarrow import csv as arrow_csv

        usual = arrow_csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True)
        if skips_bad_rows():
            header = 1 if self.columns is None else 0

            def leave_out(row: Any) -> str:
                values = f"{row.actual_columns} {'value' if row.actual_columns == 1 else 'values'}"
                bad.append((row.number - 1 - header, f"it has {values} where the others have {row.expected_columns}"))
                return "skip"

            usual.invalid_row_handler = leave_out
        return usual

    def conversion(self) -> Any:
        from pyarrow import csv as arrow_csv

        usual = arrow_csv.ConvertOptions(strings_can_be_null=True, decimal_point=self.decimal)
        usual.null_values = [*usual.null_values, *self.missing_values]
        return usual

    def explain(self, path: str, error: str) -> SourceError:
        width = _WRONG_WIDTH.search(error)
        if width is not None:
            row, wanted, got = width.groups()
            where = f"{self._format_line(path, int(row))} of {format_path(path)}" if row else format_path(path)
            what = f"has {got} {'value' if got == '1' else 'values'} where the others have {wanted}"
            return SourceError("unreadable", f"{where} {what}", help=_other_delimiter(path, self.delimiter))
        if "Empty CSV" in error:
            return SourceError("unreadable", f"{format_path(path)} is empty")
        if _STRADDLES in error:
            limit = f"{_MOST_BLOCK >> 20:,} MiB"
            message = f"a row of {format_path(path)} is longer than {limit}, or a quote in it is not closed"
            return SourceError("unreadable", message)
        reason = error.removeprefix("CSV parse error: ").splitlines()[0]
        return SourceError("unreadable", f"cannot read {format_path(path)}: {reason[:200]}")

    def _format_line(self, path: str, row: int) -> str:
        """Return where a row of the file begins, as `line 12`. If the file cannot be read again to find the line,
        return `row 11`, counted from 1 without the header.

        `row`: number of the row as pyarrow counts, from 1 with the header. It differs from the line number after blank
        lines and after line breaks in quotes.
        """
        begin, left = 1, row
        most = csv.field_size_limit(_MOST_BLOCK)
        try:
            with open_decompressed(path) as file, TextIOWrapper(file, self.encoding, "replace", newline="") as text:
                rows = csv.reader(text, delimiter=self.delimiter)
                for values in rows:
                    left -= bool(values)
                    if left == 0:
                        return f"line {begin}"
                    begin = rows.line_num + 1
        except (csv.Error, OSError):
            pass
        finally:
            csv.field_size_limit(most)
        return f"row {row - (self.columns is None)}"


def _retry_after_signal(read: Callable[[], pa.Table]) -> pa.Table:
    """Call `read`, which reads with Arrow, and return its result. Call it again if a signal cancelled it.

    Arrow cancels every read at a signal. But a run that is asked to stop first finishes the current step, and needs the
    data. If the signal's handler raises an exception, there is no second call.
    """
    import pyarrow as pa

    try:
        return read()
    except pa.ArrowCancelled:
        pa.enable_signal_handlers(False)
        try:
            return read()
        finally:
            pa.enable_signal_handlers(True)


def _without_bytes(table: Table) -> Table:
    """Remove the columns of bytes from the table (in a CSV file, texts that are not UTF-8), and return the table."""
    lost = {name: _explain_bytes(table, name) for name, column in table.columns.items() if column.dtype == "bytes"}
    table.columns = {name: column for name, column in table.columns.items() if name not in lost}
    table.left_out = {**table.left_out, **lost}
    return table


def _explain_bytes(table: Table, name: str) -> str:
    """Return the reason why the table leaves out the column `name`: it has text that is not UTF-8. The reason quotes
    the first such value, if it is near the beginning of the file."""
    for start in range(0, min(table.num_rows, _LOOKED_AT), _LOOKED_AT // 16):
        for row, value in enumerate(table.read_once([name], slice(start, start + _LOOKED_AT // 16))[name], start):
            try:
                (value or b"").decode()
            except UnicodeDecodeError:
                shown_value = value.decode("utf-8", "backslashreplace")
                where = f"first `{shown_value:.40}` in {table.place(row)}"
                return f"it holds bytes that are not UTF-8, {where}: {_OF_EXCEL}"
    return "it holds bytes that are not UTF-8 text"


def _other_delimiter(path: str, delimiter: str) -> str | None:
    """Return a hint if another common delimiter occurs more often in the header line than `delimiter`, else None."""
    with open_decompressed(path) as file:
        header = file.read(4096).decode("utf-8", "replace").partition("\n")[0]
    best = max(",;\t|", key=header.count)
    if header.count(best) <= header.count(delimiter):
        return None
    return f"its values seem to be separated by {best!r}: set delimiter to that"
