"""Opening of a data file as the source of a recipe. The delimiter, the decimal sign and words for missing values are
guessed."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from declarative_train.components.data import Dataset, Table
from declarative_train.components.datasets.arrow import ArrowDataset
from declarative_train.components.datasets.csv import CsvDataset
from declarative_train.components.datasets.jsonl import JsonlDataset
from declarative_train.components.datasets.parquet import ParquetDataset
from declarative_train.files.open_files import expand, format_path, open_file, packing
from declarative_train.files.paths import SourceError
from declarative_train.packs.tables.sqlite import SqliteDataset, only_table

if TYPE_CHECKING:
    import numpy as np

_ENDINGS: dict[str, type[Dataset]] = {
    "arrow": ArrowDataset,
    "csv": CsvDataset,
    "db": SqliteDataset,
    "feather": ArrowDataset,
    "jsonl": JsonlDataset,
    "ndjson": JsonlDataset,
    "parquet": ParquetDataset,
    "pq": ParquetDataset,
    "sqlite": SqliteDataset,
    "sqlite3": SqliteDataset,
    "tsv": CsvDataset,
    "txt": CsvDataset,
}
_DELIMITERS = ",;\t|"
_NUMBER = re.compile(r"[-+]?(\d+([.]\d*)?|[.]\d+)([eE][-+]?\d+)?")
_COMMA_NUMBER = re.compile(r"[-+]?\d*,\d+([eE][-+]?\d+)?")
_BLANKS = frozenset({"?", "-", "--", "."})  # words for a missing value in any column
_MOST_WORDS = 3  # words for a missing value in a column of numbers
_BEGINNING = 1 << 20  # bytes of a text file, of which the encoding and the delimiter are guessed
LOOKED_AT = 200_000  # rows; of a larger table, this number from all over it


class UnusableError(Exception):
    """Error: no recipe can be made for a file. The message is for the user. `is_word`: True if the cause is an option
    of the command, False if it is the data."""

    def __init__(self, message: str, help: str | None = None, *, is_word: bool = False) -> None:
        super().__init__(message)
        self.help = help
        self.is_word = is_word


def open_source(path: str, name: str | None = None) -> tuple[Dataset, Table]:
    """Return a source for a data file, with guessed delimiter, decimal sign and missing values, and its opened table.
    `name`: the table of an SQLite file that has several. Raises SourceError and UnusableError."""
    kind, files = _kind(path), expand((path,))
    if name is not None and kind is not SqliteDataset:
        raise UnusableError(f"{format_path(path)} is one table: --table is for those of an SQLite file", is_word=True)
    if kind is not CsvDataset:
        which = {"table": only_table(files[0], name)} if kind is SqliteDataset else {}
        source = kind.from_data({"type": kind.model_fields["type"].default, "path": path, **which})
        return source, _not_empty(path, source.open())
    found: dict[str, object] = {"type": "csv", "path": path}
    beginning = _read_beginning(path)
    if not _is_utf8(beginning):
        found["encoding"] = "cp1252"
    header = beginning.decode("utf-8", "replace").partition("\n")[0]
    if (delimiter := max(_DELIMITERS, key=header.count)) != ",":
        found["delimiter"] = delimiter
    table = CsvDataset.from_data(found).open()
    _check_names(path, table)
    if table.num_rows and (more := _guess_conventions(table)):
        found |= more
        table = CsvDataset.from_data(found).open()
    return CsvDataset.from_data(found), _not_empty(path, table)


_WITH_PANDAS = "with pandas: `pd.read_{}(FILE).to_parquet(...)`"
_SHEET = ("a spreadsheet", "save it as `CSV UTF-8`, or " + _WITH_PANDAS.format("excel"))
_OTHER_PROGRAMS = {  # ending -> what the file is, what to do
    **dict.fromkeys(("xlsx", "xls", "ods"), _SHEET),
    **dict.fromkeys(("pkl", "pickle"), ("a pickle", _WITH_PANDAS.format("pickle"))),
    "json": ("a JSON document", "JSON lines (.jsonl) are read; " + _WITH_PANDAS.format("json")),
    "dta": ("a file of Stata", _WITH_PANDAS.format("stata")),
    "sav": ("a file of SPSS", _WITH_PANDAS.format("spss")),
    **dict.fromkeys(("h5", "hdf5"), ("an HDF5 file", _WITH_PANDAS.format("hdf"))),
}


def _kind(path: str) -> type[Dataset]:
    plain = path.rpartition(".")[0] if packing(path) else path
    ending = plain.rpartition(".")[2].lower()
    if ending not in _ENDINGS:
        if ending in _OTHER_PROGRAMS:
            what, hint = _OTHER_PROGRAMS[ending]
            raise UnusableError(f"{format_path(path)} is {what}, which is not read", hint, is_word=True)
        hint = f"known: {', '.join(f'.{each}' for each in _ENDINGS)}, text files also with .gz, .bz2 or .zst"
        raise UnusableError(f"{format_path(path)}: its name does not tell the format", hint, is_word=True)
    return _ENDINGS[ending]


def _read_beginning(path: str) -> bytes:
    """Return the first bytes of a text file. Raises SourceError."""
    import pyarrow as pa

    try:
        with pa.input_stream(open_file(path), compression=packing(path)) as file:
            found: bytes = file.read(_BEGINNING)
            return found
    except OSError as error:
        raise SourceError("unreadable", f"cannot read {format_path(path)}: {error}") from error


def _is_utf8(beginning: bytes) -> bool:
    """Return whether the beginning of a file is UTF-8. Its last character may be incomplete."""
    try:
        beginning.decode()
    except UnicodeDecodeError as error:
        return len(beginning) == _BEGINNING and error.start > _BEGINNING - 4
    return True


def _check_names(path: str, table: Table) -> None:
    names = [*table.columns, *table.left_out]
    if names and all(_NUMBER.fullmatch(name) for name in names):
        raise UnusableError(
            f"the first line of {format_path(path)} has numbers instead of column names",
            "add a line of names above it",
        )


def _not_empty(path: str, table: Table) -> Table:
    if not table.num_rows:
        raise UnusableError(f"{format_path(path)} has columns but no rows")
    return table


def _guess_conventions(table: Table) -> dict[str, object]:
    """Return settings for the source of a table: `decimal` if numbers have a decimal comma, `missing_values` if words
    stand for missing numbers. Without them, such columns would be read as texts. Settings that are not needed are left
    out."""
    texts = [name for name, column in table.columns.items() if column.dtype == "object"]
    if not texts:
        return {}
    values = table.read(texts, rows_to_inspect(table))
    found: dict[str, object] = {}
    counts = {name: Counter(value.strip() for value in values[name] if value is not None) for name in texts}
    if any(_reads_as_numbers(each, _COMMA_NUMBER, needs=",") for each in counts.values()):
        found["decimal"] = ","
        counts = {
            name: Counter({word.replace(",", "."): count for word, count in each.items()})
            if _reads_as_numbers(each, _COMMA_NUMBER, needs=",")
            else each
            for name, each in counts.items()
        }
    words = {word for each in counts.values() for word in _odd_words(each)}
    if words:
        found["missing_values"] = sorted(words)
    return found


def _reads_as_numbers(counts: Counter[str], number: re.Pattern[str], needs: str = "") -> bool:
    """Return whether a column of texts seems to contain numbers in the notation `number`, such as one with a decimal
    comma. At least half of the rows must be in this notation or have a decimal point, and at least one row in this
    notation must contain the text `needs`. `counts`: {text: number of rows that have it}."""
    like = sum(n for word, n in counts.items() if number.fullmatch(word) or _NUMBER.fullmatch(word))
    return like * 2 >= counts.total() and any(number.fullmatch(word) and needs in word for word in counts)


def _odd_words(counts: Counter[str]) -> set[str]:
    blanks = set(_BLANKS & counts.keys())
    if not _reads_as_numbers(counts, _NUMBER):
        return blanks
    others = {word for word in counts if not _NUMBER.fullmatch(word)}
    is_few = len(others) <= _MOST_WORDS and not any(letter.isdigit() for word in others for letter in word)
    return others if is_few else blanks


def rows_to_inspect(table: Table) -> slice | np.ndarray:
    """Return the rows to inspect: all rows, or for a large table a fixed number of evenly spaced rows."""
    import numpy as np

    if table.num_rows <= LOOKED_AT:
        return slice(0, table.num_rows)
    return np.linspace(0, table.num_rows - 1, LOOKED_AT).astype(np.int64)


def columns_in_words(path: str, name: str | None = None) -> str:
    """Return the first 40 columns of a data file as text, for a user who must choose a target column. `name`: the
    table, if `path` is an SQLite file with several. Raises SourceError and UnusableError."""
    names = list(open_source(path, name)[1].columns)
    return f"its columns: {', '.join(names[:40])}" + (", ..." if len(names) > 40 else "")
