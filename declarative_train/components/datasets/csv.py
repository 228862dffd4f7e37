"""CSV files -> a table held in memory."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field

from declarative_train.components.data import SourceError, Table
from declarative_train.components.datasets.files import (
    FilesDataset,
    check_beginning,
    open_file,
    packing,
    shown,
    skips_bad_rows,
)
from declarative_train.terms.names import distinct

if TYPE_CHECKING:
    import pyarrow as pa

_WRONG_WIDTH = re.compile(r"(?:Row #(\d+): )?Expected (\d+) columns, got (\d+)")


class CsvDataset(FilesDataset):
    """Rows of CSV files, read whole into memory. The first line names the columns; blanks around a name are left out.

    Types are found by looking at all values: integers, numbers, `true`/`false`, dates, else text. Empty fields, `NA`,
    `null` and `nan` are missing values, as are `missing_values`. Several files are one table, file after file. Files
    that end in `.gz`, `.bz2` or `.zst` are unpacked. For tables larger than memory, use parquet.
    """

    type: Literal["csv"] = "csv"
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] = ","
    """What stands between two values."""
    columns: Annotated[tuple[str, ...], Field(min_length=1), AfterValidator(distinct)] | None = None
    """Names of the columns of files that have no header line."""
    decimal: Literal[".", ","] = "."
    """What stands before the fraction of a number: `,` in many European files."""
    missing_values: Annotated[tuple[str, ...], AfterValidator(distinct)] = ()
    """More words that stand for a missing value, such as `?` or `-`."""

    def open(self) -> Table:
        from declarative_train.components.datasets.arrow import MemoryTable

        bad: dict[str, list[tuple[int, str]]] = {}
        table = MemoryTable([(path, self._read(path, bad.setdefault(path, []))) for path in self.files()], bad)
        bytes_of = [name for name, column in table.columns.items() if column.dtype == "bytes"]  # elsewhere: files
        table.columns = {name: column for name, column in table.columns.items() if name not in bytes_of}
        table.left_out = {**table.left_out, **dict.fromkeys(bytes_of, "it holds bytes that are not UTF-8 text")}
        return table

    def _read(self, path: str, bad: list[tuple[int, str]]) -> pa.Table:
        import pyarrow as pa
        from pyarrow import csv

        if packing(path) is None:
            check_beginning(path, "a CSV file", None)
        try:
            with _unpacked(path) as file:
                table = csv.read_csv(
                    file,
                    # threads of a pool are not there after a fork, and without them errors name their row
                    read_options=csv.ReadOptions(use_threads=False, column_names=self.columns),
                    parse_options=self._parsing(bad),
                    convert_options=self.conversion(),
                )
                return table.rename_columns([name.strip() for name in table.column_names])
        except UnicodeDecodeError as error:  # of the names: pyarrow makes text of them when they are asked for
            what = error.object.decode("utf-8", "backslashreplace").strip()
            message = f"the first line of {shown(path)} is not UTF-8: the column `{what:.40}`"
            raise SourceError("unreadable", message, help="save the file as UTF-8 (from Excel: `CSV UTF-8`)") from error
        except pa.ArrowInvalid as error:
            raise self.explained(path, str(error)) from error
        except OSError as error:
            raise SourceError("unreadable", f"cannot read {shown(path)}: {error}") from error

    def _parsing(self, bad: list[tuple[int, str]]) -> Any:
        """`bad`: takes what is left out, rows counted from 0 behind the header."""
        from pyarrow import csv

        usual = csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True)
        if skips_bad_rows():
            header = 1 if self.columns is None else 0

            def left_out(row: Any) -> str:
                values = f"{row.actual_columns} {'value' if row.actual_columns == 1 else 'values'}"
                bad.append((row.number - 1 - header, f"it has {values} where the others have {row.expected_columns}"))
                return "skip"

            usual.invalid_row_handler = left_out
        return usual

    def conversion(self) -> Any:
        from pyarrow import csv

        usual = csv.ConvertOptions(strings_can_be_null=True, decimal_point=self.decimal)
        usual.null_values = [*usual.null_values, *self.missing_values]
        return usual

    def explained(self, path: str, error: str) -> SourceError:
        width = _WRONG_WIDTH.search(error)
        if width is not None:
            line, wanted, got = width.groups()
            where = f"line {line} of {shown(path)}" if line else shown(path)
            what = f"has {got} {'value' if got == '1' else 'values'} where the others have {wanted}"
            return SourceError("unreadable", f"{where} {what}", help=_other_delimiter(path, self.delimiter))
        if "Empty CSV" in error:
            return SourceError("unreadable", f"{shown(path)} is empty")
        reason = error.removeprefix("CSV parse error: ").splitlines()[0]
        return SourceError("unreadable", f"cannot read {shown(path)}: {reason[:200]}")


def _unpacked(path: str) -> Any:
    import pyarrow as pa

    return pa.input_stream(open_file(path), compression=packing(path))


def _other_delimiter(path: str, delimiter: str) -> str | None:
    """The delimiter that the header line uses more often, as a hint."""
    with _unpacked(path) as file:
        header = file.read(4096).decode("utf-8", "replace").partition("\n")[0]
    best = max(",;\t|", key=header.count)
    if header.count(best) <= header.count(delimiter):
        return None
    return f"its values seem to be separated by {best!r}: set delimiter to that"
