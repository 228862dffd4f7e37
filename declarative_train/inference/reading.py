"""New rows, in files or in memory, a chunk at a time: at most a few blocks of a file are in memory.

A csv is read as text: what a value is depends on the field that takes it (`fields.py`), and not on those beside it.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from csv import reader as csv_reader
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from declarative_train.components.data import SourceError, Table
from declarative_train.components.datasets import DATASETS
from declarative_train.components.datasets.files import expand, open_file, packing, shown
from declarative_train.components.datasets.image_folder import ENDINGS, FilesTable
from declarative_train.diagnostics.suggest import did_you_mean
from declarative_train.inference.trained import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from declarative_train.components.datasets.csv import CsvDataset

STDIN, _STDIN_TITLE = "-", "standard input"
_KINDS = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".npy": "npy", ".npz": "npy", ".parquet": "parquet",
          ".pq": "parquet", ".tsv": "csv"}  # fmt: skip
_BLOCK_BYTES = 4 << 20  # of a text file
_FILE_VALUES = 1 << 16  # what a file in a column counts for
_CHUNK_ROWS = 1 << 15
_CHUNK_VALUES = 1 << 22
_SHOWN = 6


class InputError(Exception):
    """The new rows are not what the model takes: one message with the file and the row, exit 1."""


class Chunk(NamedTuple):
    """Consecutive rows, from number `start` of the whole input on; values are Arrow or numpy. `title` is the file, for
    messages, and `place` says where a row of the chunk stands."""

    title: str
    start: int
    num_rows: int
    columns: Mapping[str, Any]
    place: Callable[[int], str]


Chunks = Iterator[Chunk]


class Input:
    """Rows to be read once, front to back. `names` are the columns of the first of the `files`, `large` those of them
    that hold whole files; `read` gives chunks of some columns. `decimal` stands before the fraction of a number that
    is text."""

    def __init__(
        self,
        title: str,
        names: Sequence[str],
        read: Callable[[Sequence[str]], Chunks],
        files: Sequence[str] = (),
        decimal: str = ".",
        large: Sequence[str] = (),
    ) -> None:
        self.title, self.names, self.read, self.large = title, tuple(names), read, frozenset(large)
        self.files, self.decimal = tuple(files), decimal


def open_input(paths: str | Sequence[str], source: Mapping[str, object]) -> Input:
    """Files by path, glob or URL, one below the other, a folder of pictures, or `-` for a csv on standard input.
    `source` is that of the run: what a file is whose name does not tell, and how its csv is written. Raises UsageError
    and InputError."""
    given = [paths] if isinstance(paths, str) else list(paths)
    title = shown(given[0]) if len(given) == 1 else f"{shown(given[0])} and {len(given) - 1} more"
    if STDIN in given:
        if len(given) > 1:
            raise UsageError("`-` is all of the input, and stands alone")
        return _csv_input([_spooled()], _STDIN_TITLE, source)
    if len(given) == 1 and os.path.isdir(given[0]):
        return _table_input(_table({"type": "image_folder", "path": given[0]}), given, title)
    files = files_of(given)
    kinds = {file: _kind_of(file, source) for file in files}
    kind = kinds[files[0]]
    if other := next((file for file in files if kinds[file] != kind), None):
        raise UsageError(f"{shown(files[0])} is {kind} and {shown(other)} is {kinds[other]}: give files of one kind")
    if kind == "csv":
        return _csv_input(files, title, source)
    if kind == "jsonl":
        return _jsonl_input(files, title)
    if kind == "picture":
        return _table_input(FilesTable(files), files, title)
    return _table_input(_table({"type": kind, "path": list(files)}), files, title, is_array=kind == "npy")


def files_of(paths: Sequence[str]) -> list[str]:
    """Every file that paths and globs mean. Raises UsageError."""
    try:
        return expand(paths)
    except SourceError as error:
        hint = did_you_mean(error.name, error.known) if error.known and error.problem == "not_found" else error.help
        raise UsageError(f"{error}{f'; help: {hint}' if hint else ''}") from None


def of_table(table: pa.Table) -> Input:
    """Rows in memory: an Arrow table."""

    def read(columns: Sequence[str]) -> Chunks:
        start = 0
        for batch in table.select(list(columns)).to_batches(max_chunksize=_CHUNK_ROWS):
            values = dict(zip(columns, batch.columns, strict=True))
            yield Chunk("the frame", start, batch.num_rows, values, _counting("the frame", start))
            start += batch.num_rows

    return Input("the frame", table.column_names, read)


def _counting(title: str, row: int) -> Callable[[int], str]:
    """Places of a chunk that begins with this row of its file, from 0."""
    return lambda inside: f"row {row + inside + 1:,} of {title}"


def _kind_of(file: str, source: Mapping[str, object]) -> str:
    name = file
    while packing(name) is not None:
        name = name.rpartition(".")[0]
    ending = os.path.splitext(name)[1].lower()
    if ending in ENDINGS:
        return "picture"
    kind = _KINDS.get(ending)
    if kind is not None:
        return kind
    own = str(source.get("type"))
    if own in ("csv", "jsonl", "npy", "parquet"):
        return own
    raise UsageError(f"the name of {shown(file)} does not tell what it is; help: let it end in .csv, .jsonl, .parquet, "
                     ".npy, .npz or as pictures do")  # fmt: skip


def _spooled() -> str:
    """Standard input as a file that can be read more than once, removed when this process ends."""
    import atexit

    handle, path = tempfile.mkstemp(prefix="dtrain-stdin-")
    atexit.register(Path(path).unlink, missing_ok=True)
    with open(handle, "wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    return path


# --- csv


def _csv_input(files: Sequence[str], title: str, source: Mapping[str, object]) -> Input:
    """Written as the csv files of the run are; of a run that read other files, as csv files usually are."""
    own = dict(source) if source.get("type") == "csv" else {"type": "csv"}
    if files[0].lower().endswith(".tsv"):
        own["delimiter"] = "\t"
    how = cast("CsvDataset", DATASETS.read(own | {"path": list(files)}))
    title_of = {file: title if title == _STDIN_TITLE else shown(file) for file in files}
    first = _header(files[0], how, title_of[files[0]])

    def read(columns: Sequence[str]) -> Chunks:
        start = 0
        for file in files:
            raw = {name.strip(): name for name in _header(file, how, title_of[file])}
            check_columns(columns, list(raw), title_of[file])
            row = 0
            for batch in _csv_batches(file, how, [raw[name] for name in columns], title_of[file]):
                values = dict(zip(columns, batch.columns, strict=True))
                yield Chunk(title_of[file], start, batch.num_rows, values, _counting(title_of[file], row))
                row, start = row + batch.num_rows, start + batch.num_rows

    return Input(title, [name.strip() for name in first], read, files, decimal=how.decimal)


def _header(file: str, how: CsvDataset, title: str) -> list[str]:
    if how.columns is not None:
        return list(how.columns)
    try:
        with _opened(file) as stream, io.TextIOWrapper(stream, "utf-8-sig", newline="") as text:
            line = next(csv_reader(text, delimiter=how.delimiter), [])
    except UnicodeDecodeError:
        raise InputError(f"{title} is not UTF-8; help: save it as UTF-8 (from Excel: `CSV UTF-8`)") from None
    if not line:
        raise InputError(f"{title} is empty: not even a line with the names of the columns is there")
    twice = [name for name in line if line.count(name) > 1]
    if twice:
        raise InputError(f"{title} has two columns called `{twice[0].strip()}`")
    return line


def _opened(file: str) -> IO[bytes]:
    import pyarrow as pa

    try:
        kind = packing(file)
        opened: IO[bytes] = open_file(file)
        return opened if kind is None else io.BufferedReader(pa.input_stream(opened, compression=kind))
    except SourceError as error:
        raise UsageError(str(error)) from None


def _csv_batches(file: str, how: CsvDataset, columns: Sequence[str], title: str) -> Iterator[pa.RecordBatch]:
    """As text: what a value is depends on the field that takes it, and not on the values beside it."""
    import pyarrow as pa
    from pyarrow import csv

    conversion = how.conversion()
    conversion.include_columns = list(columns)
    conversion.column_types = {name: pa.string() for name in columns}
    try:
        with _opened(file) as stream:
            yield from csv.open_csv(
                stream,
                read_options=csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES, column_names=how.columns),
                parse_options=csv.ParseOptions(delimiter=how.delimiter, newlines_in_values=True),
                convert_options=conversion,
            )
    except pa.ArrowInvalid as error:
        made = how.explained(file, str(error))
        hint = f"; help: {made.help}" if made.help else ""
        raise InputError(f"{str(made).replace(shown(file), title)}{hint}") from None


# --- jsonl


def _jsonl_input(files: Sequence[str], title: str) -> Input:
    first = next(_json_blocks(files[0]), None)
    names = [] if first is None else _json_table(files[0], 0, first).column_names
    if first is None:
        raise InputError(f"{title} is empty")

    def read(columns: Sequence[str]) -> Chunks:
        import pyarrow as pa

        start = 0
        for file in files:
            row = 0
            for block in _json_blocks(file):
                table = _json_table(file, row, block)
                found = {
                    name: table.column(name).combine_chunks()
                    if name in table.column_names
                    else pa.nulls(table.num_rows)  # a key that no line of the block has
                    for name in columns
                }
                yield Chunk(shown(file), start, table.num_rows, found, _counting(shown(file), row))
                row, start = row + table.num_rows, start + table.num_rows

    return Input(title, names, read, files)


def _json_blocks(file: str) -> Iterator[bytes]:
    """Whole lines."""
    with _opened(file) as stream:
        while block := stream.read(_BLOCK_BYTES):
            block += stream.readline()
            if block.strip():
                yield block


def _json_table(file: str, row: int, block: bytes) -> pa.Table:
    import pyarrow as pa
    from pyarrow import json as arrow_json

    options = arrow_json.ReadOptions(use_threads=False, block_size=max(1 << 20, len(block) + 1))
    try:
        return arrow_json.read_json(pa.BufferReader(block), read_options=options)
    except pa.ArrowInvalid as error:
        lines = [line for line in block.splitlines() if line.strip()]
        for number, line in enumerate(lines):
            try:
                if not isinstance(json.loads(line), dict):
                    raise ValueError("a line is an object, {...}")
            except (ValueError, RecursionError) as problem:
                where = f"row {row + number + 1:,} of {shown(file)}"
                raise InputError(f"{where} is not JSON: {problem}") from None
        reason = str(error).removeprefix("JSON parse error: ").splitlines()[0]
        raise InputError(f"cannot read {shown(file)} from row {row + 1:,} on: {reason[:200]}") from None


# --- tables that can be read by row: parquet, npy, pictures


def _table(source: Mapping[str, object]) -> Table:
    try:
        return DATASETS.read(source).open()
    except SourceError as error:
        raise InputError(f"{error}{f'; help: {error.help}' if error.help else ''}") from None


def _table_input(table: Table, files: Sequence[str], title: str, *, is_array: bool = False) -> Input:
    names = list(table.columns)
    large = [name for name in names if table.columns[name].dtype == "bytes"]

    def read(columns: Sequence[str]) -> Chunks:
        held = {asked: _only_column(names, asked, is_array) for asked in columns}
        width = sum(
            _FILE_VALUES if name in large else int(np.prod(table.columns[name].shape)) for name in held.values()
        )
        size = max(1, min(_CHUNK_ROWS, _CHUNK_VALUES // max(width, 1)))
        for start in range(0, table.num_rows, size):
            stop = min(start + size, table.num_rows)
            try:
                values = table.read(list(dict.fromkeys(held.values())), slice(start, stop))
            except SourceError as error:
                raise InputError(str(error)) from None
            found = {asked: values[name] for asked, name in held.items()}
            yield Chunk(title, start, stop - start, found, partial(_place_in, table, start))

    return Input(title, [*names, *table.left_out], read, files, large=large)


def _place_in(table: Table, start: int, row: int) -> str:
    return table.place(start + row)


def _only_column(names: Sequence[str], asked: str, is_array: bool) -> str:
    """An array of a file `new.npy` is the column that the model reads, whatever the file is called."""
    return names[0] if is_array and len(names) == 1 else asked


def check_columns(columns: Sequence[str], names: Sequence[str], title: str) -> None:
    missing = [name for name in columns if name not in names]
    if not missing:
        return
    listed = ", ".join(f"`{name}`" for name in missing[:_SHOWN]) + (
        f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
    )
    what = "the column" if len(missing) == 1 else f"{len(missing)} columns"
    raise InputError(f"{title} lacks {what} {listed}, which the model reads; help: {did_you_mean(missing[0], names)}")
